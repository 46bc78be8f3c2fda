"""Totals of profiler windows: kernels and costs so far, and the record of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ampwatch.diagnosis.evidence.ops import KernelTime
from ampwatch.numerics.units.kernels.classifier import classify as classify_name
from ampwatch.numerics.units.kernels.generations import lags
from ampwatch.numerics.units.kernels.kernel_launch import multiplied_dtype
from ampwatch.numerics.units.kernels.kernel_tally import KernelTally
from ampwatch.wire.records import KernelRow, KernelTotal, WindowRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ampwatch.numerics.units.kernels.kernel_name import KernelName
    from ampwatch.training.sensors.window.events import Inputs, KernelLaunch, Spent

MAX_ROWS = 48
"""Kernels in a record."""

LONGEST_NAME = 200
"""Characters of a name in a record."""

COPIES = ("Memcpy", "Memset")
"""Beginnings of the names of copies and fills, which are no kernels."""

CPU = "cpu"
"""Unit of ops on a CPU."""


class Found(Struct):
    """The kernels of one window, on a CPU the ops.

    Attributes:
        rows: Kernels for the record, the longest first.
        times: Kernels for the diagnosis, the longest first; empty on a CPU.
        totals: Time by unit and dtype.
        misaligned_ns: Time of kernels that assume less than full alignment. Unit: ns.
        lagging_ns: Time of kernels made for an older architecture. Unit: ns.
        gemv_ns: Time of matrix-vector kernels in low precision. Unit: ns.
        busy_ns: Time in which the device ran a kernel. Unit: ns.
        waited_ns: Time in which the host waited for a device. Unit: ns.
    """

    rows: list[KernelRow] = field(default_factory=list)
    times: list[KernelTime] = field(default_factory=list)
    totals: dict[tuple[str, str], int] = field(default_factory=dict)
    misaligned_ns: int = 0
    lagging_ns: int = 0
    gemv_ns: int = 0
    busy_ns: int = 0
    waited_ns: int = 0


def kernels_found(
    kernels: Mapping[KernelLaunch, Spent],
    *,
    busy_ns: int,
    capability: tuple[int, int] | None,
    tf32_allowed: bool,
    classify: Callable[[str], KernelName] = classify_name,
) -> Found:
    """Classify the kernels of a window."""
    tally = KernelTally(capability=capability, tf32_allowed=tf32_allowed, classify=classify)
    found = Found()
    for launch, spent in sorted(kernels.items(), key=_longest_first):
        # An op that multiplies may launch copies as well, and they are no products.
        op = "" if launch.name.startswith(COPIES) else launch.op
        kernel = tally.add(launch.name, spent.nanoseconds, launch.inputs, op)
        found.rows.append(_row(launch, spent, kernel))
        found.times.append(_time(launch, spent, kernel, capability))
    found.totals = {(unit.value, dtype): ns for (unit, dtype), ns in tally.by_unit.items()}
    not_misaligned = ("full", "unsaid")
    found.misaligned_ns = sum(
        ns for name, ns in tally.by_alignment.items() if name not in not_misaligned
    )
    found.lagging_ns = tally.lagging_ns
    found.gemv_ns = tally.low_precision_gemv_ns
    found.busy_ns = busy_ns
    return found


def ops_found(ops: Mapping[tuple[str, Inputs], Spent]) -> Found:
    """Add up the ops of a window on a CPU by the narrowest dtype of their inputs."""
    found = Found()
    grouped: dict[tuple[str, str], tuple[int, int]] = {}
    for (name, inputs), spent in ops.items():
        key = (name, multiplied_dtype(inputs))
        calls, ns = grouped.get(key, (0, 0))
        grouped[key] = (calls + spent.calls, ns + spent.nanoseconds)
    for (name, dtype), (calls, ns) in grouped.items():
        short = name[:LONGEST_NAME]
        found.rows.append(KernelRow(short, short, CPU, dtype, "", "", 0, 0, calls, ns))
        found.totals[CPU, dtype] = found.totals.get((CPU, dtype), 0) + ns
    found.rows.sort(key=lambda row: -row.nanoseconds)
    return found


def _longest_first(item: tuple[KernelLaunch, Spent]) -> tuple[int, KernelLaunch]:
    return -item[1].nanoseconds, item[0]


def _base(op: str) -> str:
    return op.rpartition("::")[2][:LONGEST_NAME]


def _row(launch: KernelLaunch, spent: Spent, kernel: KernelName) -> KernelRow:
    return KernelRow(
        name=launch.name[:LONGEST_NAME],
        op=_base(launch.op),
        unit=kernel.unit.value,
        dtype=kernel.dtype,
        family=kernel.family,
        rule=kernel.rule,
        arch=kernel.arch or 0,
        align=kernel.align or 0,
        calls=spent.calls,
        nanoseconds=spent.nanoseconds,
    )


def _time(
    launch: KernelLaunch, spent: Spent, kernel: KernelName, capability: tuple[int, int] | None
) -> KernelTime:
    return KernelTime(
        name=launch.name,
        op=_base(launch.op),
        unit=kernel.unit.value,
        dtype=kernel.dtype,
        align=kernel.align or 0,
        lags=capability is not None and lags(kernel, capability),
        gemv=kernel.gemv,
        seconds=spent.nanoseconds / 1e9,
    )


class WindowTotals(Struct):
    """Totals of all windows; ``WindowRecord`` documents each."""

    windows: int = 0
    invalid: int = 0
    iterations: int = 0
    start_ns: int = 0
    run_ns: int = 0
    stop_ns: int = 0
    walk_ns: int = 0
    first_ns: int = 0
    drag: float = math.nan
    memory_bytes: int = 0
    busy_ns: int = 0
    wall_ns: int = 0
    misaligned_ns: int = 0
    lagging_ns: int = 0
    gemv_ns: int = 0
    totals: dict[tuple[str, str], int] = field(default_factory=dict)
    rows: Sequence[KernelRow] = ()

    @property
    def cost_ns(self) -> int:
        """Cost of windows so far, without the first start. Unit: ns."""
        return self.start_ns + self.run_ns + self.stop_ns + self.walk_ns

    def add(self, found: Found, iterations: int, wall_ns: int) -> None:
        """Add a valid window."""
        self.iterations += iterations
        self.wall_ns += wall_ns
        self.busy_ns += found.busy_ns
        self.misaligned_ns += found.misaligned_ns
        self.lagging_ns += found.lagging_ns
        self.gemv_ns += found.gemv_ns
        for key, ns in found.totals.items():
            self.totals[key] = self.totals.get(key, 0) + ns
        self.rows = found.rows

    def record(self, step: int, skipped: Iterable[int]) -> WindowRecord:
        """Return the record of all windows."""
        first, second, third, fourth, fifth = skipped
        same = {name: getattr(self, name) for name in SAME}
        return WindowRecord(
            step,
            skipped=(first, second, third, fourth, fifth),
            totals=by_time(self.totals),
            kernels=tuple(self.rows[:MAX_ROWS]),
            kernels_left_out=max(len(self.rows) - MAX_ROWS, 0),
            **same,
        )


SAME = frozenset(WindowTotals.__struct_fields__) - {"totals", "rows"}
"""Fields that the record has under the same names."""


def by_time(totals: Mapping[tuple[str, str], int]) -> tuple[KernelTotal, ...]:
    """Return the time by unit and dtype, the longest first."""
    rows = [KernelTotal(unit, dtype, ns) for (unit, dtype), ns in totals.items()]
    return tuple(sorted(rows, key=lambda row: (-row.nanoseconds, row)))
