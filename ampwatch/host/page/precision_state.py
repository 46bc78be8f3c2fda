"""The precision of a rank for the page: who ran what in which dtype, and on which units.

Rows are lists whose cells the ``*_COLUMNS`` name. The same object is returned for as long as
what it says holds, so that a change of state names what is new only. No torch, no network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ampwatch.host.page.as_json import digits
from ampwatch.numerics.units.kernels.classifier import UNLISTED
from ampwatch.report.op_lines import GROUPINGS, op_lines
from ampwatch.report.op_shares import Absence, casts_per_op, flops_by_dtype, tensor_share
from ampwatch.report.precision_words import (
    FALLBACKS,
    arithmetic_sentence,
    census_sentence,
    kernels_sentence,
    matmul_remarks,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ampwatch.host.fleet import Fleet, RankView
    from ampwatch.host.page.rows import State
    from ampwatch.report.op_lines import OpLine
    from ampwatch.report.op_shares import Arithmetic
    from ampwatch.wire.records import CensusRecord, KernelRow, WindowRecord

Row = list[Any]

OP_COLUMNS = (
    "name",
    "ran_in",
    "calls",
    "flops",
    "tensor_flops",
    "bytes",
    "casts",
    "cast_bytes",
    "mix",
    "why",
)
"""Cells of a line of the op table. ``mix`` are pairs of dtype and share of the FLOPs, or of the
bytes where there are no FLOPs; ``why`` pairs of calls and words."""

KERNEL_COLUMNS = (
    "name",
    "op",
    "unit",
    "dtype",
    "family",
    "rule",
    "arch",
    "align",
    "calls",
    "seconds",
)
"""Cells of the row of a kernel."""

MAX_LINES = 128
"""Lines of each table that a page is sent."""

MAX_KERNELS = 32
"""Rows of kernels that a page is sent: with the tables some 40 kB a rank."""


class PrecisionState:
    """The precision of one rank, kept ready for the page."""

    def __init__(self) -> None:
        self._census: CensusRecord | None = None
        self._window: tuple[WindowRecord | None, Absence] | None = None
        self._ops: State = {"sentence": census_sentence(None)}
        self._kernels: State = {}

    def of(self, rank: RankView) -> State:
        """Return what the page shows of the precision of ``rank``."""
        known = rank.precision
        # The tables of a large model take milliseconds: made once for each record.
        if known.census is not None and known.census is not self._census:
            self._census = known.census
            self._ops = _ops(known.census)
        seen = (known.window, known.kernels_absence)
        if self._window is None or self._window[0] is not seen[0]:
            self._window = seen
            self._kernels = _kernels(*seen)
        return {"ops": self._ops, "kernels": self._kernels, "ceiling": _ceiling(rank.arithmetic)}


def kernel_names(fleet: Fleet) -> State:
    """Return the kernels of the newest window of every rank, for whoever checks the classifier.

    ``unlisted`` are the names of which no rule knows anything.
    """
    with fleet.lock:
        windows = [(r.run, str(r.identity.rank), r.precision.window) for r in fleet.ranks()]
    runs: State = {}
    # Without the lock: windows do not change, and there may be 256 of them.
    for run, rank, window in windows:
        if window is not None:
            runs.setdefault(run, {})[rank] = {
                "step": window.step,
                "columns": KERNEL_COLUMNS,
                "kernels": [_kernel(kernel) for kernel in window.kernels],
                "left_out": window.kernels_left_out,
                "unlisted": [k.name for k in window.kernels if k.rule == UNLISTED],
            }
    return {"runs": runs}


def _ops(census: CensusRecord) -> State:
    tables = {by: op_lines(census, by) for by in GROUPINGS}
    casts = casts_per_op(census)
    per_iteration = max(1, census.iterations)
    state: State = {
        "sentence": census_sentence(census),
        "mix": _shares(flops_by_dtype(census)),
        "fallbacks": [
            [FALLBACKS[total.reason], total.calls, digits(total.flops)]
            for total in sorted(census.fallbacks, key=lambda t: (-t.flops, -t.calls))
            if total.reason in FALLBACKS
        ],
        "cast_bytes": digits(sum(cast.bytes for cast in census.casts) / per_iteration),
        "tables": {by: [_line(line) for line in lines[:MAX_LINES]] for by, lines in tables.items()},
        "left_out": {by: max(0, len(lines) - MAX_LINES) for by, lines in tables.items()},
    }
    if casts is not None:
        state["casts_per_op"] = digits(casts, 4)
    return state


def _line(line: OpLine) -> Row:
    return [
        line.name,
        line.ran_in,
        line.calls,
        digits(line.flops),
        digits(line.tensor_flops),
        digits(line.bytes),
        line.casts,
        digits(line.cast_bytes),
        _shares(dict((line.mix if line.flops else line.bytes_mix).most_common())),
        [[calls, FALLBACKS[reason]] for reason, calls in line.fallbacks.most_common()],
    ]


def _ceiling(arithmetic: Arithmetic) -> State:
    if arithmetic.absence is Absence.WAITING:
        return {}
    state: State = {"sentence": arithmetic_sentence(arithmetic)}
    if arithmetic.utilization is not None:
        state["share"] = digits(arithmetic.utilization, 4)
    return state


def _kernels(window: WindowRecord | None, absence: Absence) -> State:
    state: State = {"sentence": kernels_sentence(window, absence)}
    if window is None:
        return state
    share = tensor_share(window)
    if share is not None:
        state["share"] = [digits(share.low, 4), digits(share.high, 4)]
    shown = window.kernels[:MAX_KERNELS]
    return {
        **state,
        "remarks": matmul_remarks(window),
        "totals": [
            [total.unit, total.dtype, digits(total.nanoseconds / 1e9, 4)]
            for total in sorted(window.totals, key=lambda t: -t.nanoseconds)
            if total.nanoseconds
        ],
        "step": window.step,
        "rows": [_kernel(kernel) for kernel in shown],
        "left_out": window.kernels_left_out + len(window.kernels) - len(shown),
    }


def _kernel(kernel: KernelRow) -> Row:
    return [*kernel[:-1], digits(kernel.nanoseconds / 1e9, 4)]


def _shares(weights: Mapping[str, float]) -> list[Row]:
    whole = sum(weights.values())
    return [[dtype, digits(n / whole, 4)] for dtype, n in weights.items() if n]
