"""Metrics of the op census: what was computed in which dtype, and what was cast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.host.metrics.scopes import CENSUS, ROOT_MODULE, dtype_label, part, summed
from ampwatch.numerics.formats import OF_TRAINING
from ampwatch.numerics.units.ops import Fallback
from ampwatch.report.op_lines import op_lines
from ampwatch.report.op_shares import low_precision_share

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.host.metrics.metric import Reader, Rows
    from ampwatch.host.metrics.scopes import Table
    from ampwatch.wire.records import CastTotal, CensusRecord, FallbackTotal, OpTotal

_STARTS_AT_0 = [fmt.name for fmt in OF_TRAINING]
"""Dtypes whose FLOPs are 0 before they are seen, so that the first are an increase."""


def _ops(read: Callable[[OpTotal], int]) -> Reader:
    """Return the reader of a count of ops by what they do and what they computed in."""
    return CENSUS.by(
        "op_kind",
        "dtype",
        read=lambda census: summed(
            ((total.kind.label, dtype_label(total.dtype)), read(total)) for total in census.ops
        ),
    )


def _flops(read: Callable[[OpTotal], int]) -> Reader:
    """Return the reader of FLOPs by dtype, those of the usual dtypes starting at 0."""

    def by_dtype(census: CensusRecord | None) -> Table:
        found = () if census is None else census.ops
        zeros = [((dtype,), 0) for dtype in _STARTS_AT_0]
        return summed(
            zeros + [((dtype_label(t.dtype),), read(t)) for t in found if t.kind.has_flops]
        )

    return CENSUS.or_none.by("dtype", read=by_dtype)


def _casts(read: Callable[[CastTotal], int]) -> Reader:
    """Return the reader of a count of casts from one dtype to another."""
    return CENSUS.by(
        "from_dtype",
        "to_dtype",
        read=lambda census: summed(
            ((dtype_label(cast.from_dtype), dtype_label(cast.to_dtype)), read(cast))
            for cast in census.casts
        ),
    )


def _fallbacks(read: Callable[[FallbackTotal], int]) -> Reader:
    """Return the reader of fallbacks to float32, every reason starting at 0."""

    def by_reason(census: CensusRecord | None) -> Table:
        found = () if census is None else census.fallbacks
        zeros = [((reason.label,), 0) for reason in Fallback if reason is not Fallback.NONE]
        return summed(zeros + [((total.reason.label,), read(total)) for total in found])

    return CENSUS.or_none.by("reason", read=by_reason)


def _low_precision_shares(known: tuple[CensusRecord | None, tuple[str, ...]]) -> Table:
    census, exported = known
    # The lines of all modules are dear to make: not for a rank that exports none.
    lines = [] if census is None or not exported else op_lines(census, "module")
    for line in lines:
        share = low_precision_share(line.mix)
        if line.name in exported and share is not None:
            yield (line.name or ROOT_MODULE,), share


PRECISION_MIX: Rows = {
    "ampwatch_census_iterations_total": (
        "Iterations whose ops were counted.",
        CENSUS.count(lambda census: census.iterations),
    ),
    "ampwatch_last_census_timestamp_seconds": (
        "Unix time of the end of the newest iteration whose ops were counted.",
        CENSUS.one(lambda census: census.time_ns / 1e9),
    ),
    "ampwatch_op_calls_total": (
        "ATen ops in counted iterations, without casts; a pair of labels appears when it is first seen.",
        _ops(lambda total: total.calls),
    ),
    "ampwatch_op_bytes_total": (
        "Bytes that these ops have read and written.",
        _ops(lambda total: total.bytes),
    ),
    "ampwatch_flops_total": (
        "Floating-point operations of matmuls, convolutions and attention in counted iterations, backward and recomputation included.",
        _flops(lambda total: total.flops),
    ),
    "ampwatch_tensor_core_flops_total": (
        "The part of ampwatch_flops_total that could run on tensor cores at full speed, by dtype and dimensions. What did is in ampwatch_kernel_seconds_total.",
        _flops(lambda total: total.tensor_flops),
    ),
    "ampwatch_casts_total": (
        "Casts in counted iterations; a pair appears when it is first seen.",
        _casts(lambda cast: cast.calls),
    ),
    "ampwatch_cast_bytes_total": (
        "Bytes that these casts have read and written.",
        _casts(lambda cast: cast.bytes),
    ),
    "ampwatch_autocast_fallback_ops_total": (
        "Ops of the forward pass that ran in float32 although the training uses autocast, in counted iterations.",
        _fallbacks(lambda total: total.calls),
    ),
    "ampwatch_autocast_fallback_flops_total": (
        "Floating-point operations of these ops: what autocast could have made faster.",
        _fallbacks(lambda total: total.flops),
    ),
    "ampwatch_module_low_precision_flops_ratio": (
        "Share of the module's floating-point operations in 16 bits and fewer, in the newest counted iteration.",
        part(lambda rank: (rank.precision.census, rank.ranges.modules.exported)).by(
            "module", read=_low_precision_shares
        ),
    ),
}
