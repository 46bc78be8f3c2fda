"""Precision in words: the same on the page, in the terminal and in reports.

ASCII only: a report can be printed in any locale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.numerics.units.ops import Fallback
from ampwatch.numerics.written import counted
from ampwatch.report.op_shares import (
    Absence,
    casts_per_op,
    flops_by_dtype,
    nanoseconds_by_unit,
    tensor_share,
)
from ampwatch.report.words import percent, step_time
from ampwatch.wire.records import CensusSource

if TYPE_CHECKING:
    from ampwatch.report.op_shares import Arithmetic, Share
    from ampwatch.wire.records import CensusRecord, WindowRecord

FALLBACKS = {
    Fallback.FP32_LIST: "autocast runs it in float32",
    Fallback.NOT_LISTED: "autocast leaves it alone, its input was float32",
    Fallback.PROMOTED: "its inputs had different dtypes",
    Fallback.DISABLED_REGION: "inside autocast(enabled=False)",
    Fallback.OUTSIDE_REGION: "outside every autocast region",
    Fallback.OTHER_THREAD: "in a thread without an autocast region of its own",
    Fallback.DEVICE_TYPE: "inside a region for another type of device",
    Fallback.CUSTOM_FUNCTION: "in an autograd.Function or custom op that asks for float32",
}
"""Reasons for which an op ran in float32 although autocast is used."""

_SOURCES = {
    CensusSource.DISPATCH: "one by one",
    CensusSource.PROFILER: "from a profiler window, which has less detail than counting one by one",
    CensusSource.FORCED_EAGER: "one by one, its compiled code run eagerly",
}

_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")

NO_CENSUS = (
    'No op was counted yet: level="deep" counts them in each of the first steps and in some later,'
    ' "standard" in some steps, or with torch.compile or op_census="window" in profiler windows; "light" counts none.'
)

_NO_KERNELS = {
    Absence.WAITING: (
        "No profiler window so far: they are opened rarely, and at the levels"
        ' "standard" and "deep" only.'
    ),
    Absence.NO_GPU: "Trained on a CPU: it has no tensor cores. The time of its ops is below.",
    Absence.NO_MATMULS: "No kernel in the profiled iterations multiplies matrices.",
}


def si(value: float, unit: str = "") -> str:
    """Write ``value`` with three significant digits and an SI prefix: ``1.2 TB``."""
    power = 0
    while value >= 999.5 and power < len(_PREFIXES) - 1:
        value /= 1000
        power += 1
    return f"{value:.3g} {_PREFIXES[power]}{unit}".rstrip()


def mix(flops: dict[str, int]) -> str:
    """Write the share of each dtype in the FLOPs."""
    whole = sum(flops.values())
    return ", ".join(f"{percent(n / whole)} in {dtype}" for dtype, n in flops.items())


def band(share: Share) -> str:
    """Write a share of which only bounds are known; as one number where they meet."""
    low, high = percent(share.low), percent(share.high)
    return low if low == high else f"between {low} and {high}"


def census_sentence(census: CensusRecord | None) -> str:
    """Say what was counted, or why nothing was."""
    if census is None:
        return NO_CENSUS
    iterations = counted(census.iterations, "iteration")
    how = _SOURCES[census.source]
    text = f"{iterations} counted so far, the newest, step {census.step}, {how}"
    if census.rows_left_out:
        text += f"; {counted(census.rows_left_out, 'row')} with less to say left out"
    return f"{text}."


def kernels_sentence(window: WindowRecord | None, absence: Absence) -> str:
    """Say how much of the time of matmul kernels tensor cores have had, or why that is not known."""
    share = None if window is None else tensor_share(window)
    if share is None or window is None:
        return _NO_KERNELS.get(absence, _NO_KERNELS[Absence.WAITING])
    text = f"Tensor cores had {band(share)} of the time of matmul kernels"
    return f"{text}, in {counted(window.iterations, 'profiled iteration')}."


def matmul_remarks(window: WindowRecord) -> list[str]:
    """Say what else is known of the time of matmul kernels; nothing of what did not happen."""
    time = nanoseconds_by_unit(window)
    whole = time["tensor"] + time["cuda"] + time["unknown"]
    remarks = (
        (window.misaligned_ns, "in kernels that assume less than full alignment"),
        (window.lagging_ns, "in kernels made for an older architecture"),
        (window.gemv_ns, "in matrix-vector kernels, which have no use for tensor cores"),
    )
    return [f"{percent(min(1.0, ns / whole))} {words}" for ns, words in remarks if ns and whole]


def arithmetic_sentence(arithmetic: Arithmetic) -> str:
    """Say how much of the ceiling was used, or why that is not known."""
    a = arithmetic
    if a.utilization is None or a.ideal_seconds is None:
        return a.sentence
    text = (
        f"At the peak of each dtype a step would take {step_time(a.ideal_seconds)};"
        f" it takes {step_time(a.step_seconds)}: {percent(a.utilization)} of the ceiling"
    )
    if a.utilization > 1.0:
        return f"{text}, which cannot be: the peak is not that of this device, or steps differ."
    return f"{text}, MFU {percent(a.mfu)}." if a.mfu is not None else f"{text}."


def report_lines(census: CensusRecord | None, window: WindowRecord | None) -> list[str]:
    """Return what a report says of precision; nothing without a census or a window."""
    lines = []
    flops = {} if census is None else flops_by_dtype(census)
    if flops:
        lines.append(f"FLOPs: {mix(flops)}")
    casts = None if census is None else casts_per_op(census)
    if casts is not None and census is not None:
        size = sum(cast.bytes for cast in census.casts) / max(1, census.iterations)
        lines.append(f"{casts:.2g} casts for each matrix product, {si(size, 'B')} an iteration")
    if window is not None and tensor_share(window) is not None:
        lines.append(kernels_sentence(window, Absence.OK).rstrip("."))
    return lines
