"""Op censuses in, records out: totals so far, and the table of the newest."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from ampwatch.diagnosis.detector import Detector, Shared
from ampwatch.diagnosis.evidence.ops import OpTally
from ampwatch.numerics.units.ops import Fallback, OpKind
from ampwatch.wire.records import (
    ALL_MODULES,
    CastTotal,
    CensusRecord,
    FallbackTotal,
    OpRow,
    OpTotal,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.diagnosis.evidence.ops import OpCensus, OpKey
    from ampwatch.diagnosis.steps.steps import StepVerdict

APART_NS = 1_000_000_000
"""Between two times that a census is written: nobody reads tables faster, and in the first
iterations at ``deep`` there is one in each. Unit: ns."""

MAX_OP_ROWS = 128


class OpRecorder(Detector):
    """Adds censuses up and writes what came of it."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._most_modules = shared.settings.max_modules
        self._put = shared.put
        self._iterations = 0
        self._ops: defaultdict[tuple[OpKind, str], list[int]] = defaultdict(lambda: [0] * 4)
        self._casts: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * 2)
        self._fallbacks: defaultdict[Fallback, list[int]] = defaultdict(lambda: [0] * 2)
        self._written_ns = -APART_NS
        self._unwritten: tuple[OpCensus, int] | None = None
        self._newest: CensusRecord | None = None

    def detect(self, iteration: Iteration, _verdict: StepVerdict) -> None:
        """Take in one judged iteration."""
        if iteration.census is not None:
            self.record(iteration.census, iteration.time_ns)
        self.pass_on(iteration.time_ns)

    def record(self, census: OpCensus, time_ns: int) -> None:
        """Add a census, and pass it on.

        Args:
            census: The census.
            time_ns: Unix time at the end of its iteration. Unit: ns.

        Cost: some ms with a thousand different ops, on the training thread.
        """
        self._iterations += 1
        for key, tally in census.tallies.items():
            self._add(key, tally)
        self._unwritten = census, time_ns
        self.pass_on(time_ns)

    def pass_on(self, time_ns: int) -> None:
        """Write what has not been written yet, if the last time is long enough ago.

        Args:
            time_ns: Unix time at the end of an iteration. Unit: ns.
        """
        if self._unwritten is not None and time_ns - self._written_ns >= APART_NS:
            self.flush(time_ns)

    @property
    def due_ns(self) -> float:
        """Unix time from which on ``pass_on`` writes something; infinite if nothing waits. Unit: ns."""
        return math.inf if self._unwritten is None else self._written_ns + APART_NS

    def newest(self) -> CensusRecord | None:
        """Return the record as of the newest census, ``None`` before the first."""
        if self._unwritten is not None:
            self._newest = self._made(*self._unwritten)
        return self._newest

    def flush(self, time_ns: int) -> None:
        """Write what has not been written yet."""
        record = self.newest()
        if record is not None and self._unwritten is not None:
            self._written_ns, self._unwritten = time_ns, None
            self._put(record)

    def _made(self, census: OpCensus, time_ns: int) -> CensusRecord:
        return CensusRecord(
            step=census.step,
            time_ns=time_ns,
            source=census.source,
            iterations=self._iterations,
            ops=tuple(OpTotal(*key, *sums) for key, sums in self._ops.items()),
            casts=tuple(CastTotal(*key, *sums) for key, sums in self._casts.items()),
            fallbacks=tuple(FallbackTotal(key, *sums) for key, sums in self._fallbacks.items()),
            rows=tuple(_rows(census, self._most_modules)),
            rows_left_out=0,
        )

    def _add(self, key: OpKey, tally: OpTally) -> None:
        if key.kind is OpKind.CAST:
            sums = self._casts[key.dtype, key.out_dtype]
            added = [tally.calls, tally.bytes]
        else:
            sums = self._ops[key.kind, key.dtype]
            added = [tally.calls, tally.flops, tally.tensor_flops, tally.bytes]
        for index, value in enumerate(added):
            sums[index] += value
        if key.fallback is not Fallback.NONE:
            self._fallbacks[key.fallback][0] += tally.calls
            self._fallbacks[key.fallback][1] += tally.flops


def _rows(census: OpCensus, most_modules: int) -> list[OpRow]:
    """Return the table of a census: by op, and by module."""
    by_op, by_module = _summed(census, _of_op), _summed(census, _of_module)
    heavy = sorted({row.module for row in by_module}, key=_weights(by_module).__getitem__)
    kept = set(heavy[::-1][:most_modules])
    rows = [*sorted(by_op, key=_weight, reverse=True)[:MAX_OP_ROWS]]
    return sorted([*rows, *(r for r in by_module if r.module in kept)], key=_weight, reverse=True)


def _of_op(key: OpKey) -> OpRow:
    op, kind, _, phase, given, dtype, made, fallback = key
    inputs = "+".join(given)
    return OpRow(op, ALL_MODULES, kind, phase, inputs, dtype, made, fallback, 0, 0, 0, 0)


def _of_module(key: OpKey) -> OpRow:
    kind, out_dtype = key.kind, ""
    if kind is OpKind.CAST:
        out_dtype = key.out_dtype
    else:
        kind = OpKind.MATMUL if kind.has_flops else OpKind.OTHER
    fallback = key.fallback if kind is OpKind.MATMUL else Fallback.NONE
    return OpRow("", key.module, kind, key.phase, "", key.dtype, out_dtype, fallback, 0, 0, 0, 0)


def _summed(census: OpCensus, row_of: Callable[[OpKey], OpRow]) -> list[OpRow]:
    """Return the rows, each once, with what their tallies add up to."""
    sums: defaultdict[OpRow, OpTally] = defaultdict(OpTally)
    for key, tally in census.tallies.items():
        sums[row_of(key)].add(tally)
    return [
        row._replace(calls=s.calls, flops=s.flops, tensor_flops=s.tensor_flops, bytes=s.bytes)
        for row, s in sums.items()
    ]


def _weight(row: OpRow) -> tuple[int, int]:
    return row.flops, row.bytes


def _weights(rows: Iterable[OpRow]) -> dict[str, tuple[int, int]]:
    weights: dict[str, tuple[int, int]] = {}
    for row in rows:
        flops, num_bytes = weights.get(row.module, (0, 0))
        weights[row.module] = flops + row.flops, num_bytes + row.bytes
    return weights
