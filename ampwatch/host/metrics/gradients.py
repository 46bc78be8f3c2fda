"""Metrics of the gradients of all modules together, and of parameters and buffers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from ampwatch.host.metrics.metric import Metric
from ampwatch.host.metrics.scopes import PER_RANK, TOTALS, NewestRecord, each, part
from ampwatch.numerics.whatif import Fit
from ampwatch.report.limits import finite_amax, zero_share
from ampwatch.report.logged import gradient_norm
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from ampwatch.host.fleet import RankView
    from ampwatch.host.fleet.ranges import Recommendation
    from ampwatch.host.metrics.scopes import Table
    from ampwatch.numerics.block_casts import BlockOutcome
    from ampwatch.wire.records import SamplingRecord


def _nonfinite(totals: SamplingRecord | None) -> Table:
    yield ("nan",), 0 if totals is None else totals.gradient_nans
    yield ("inf",), 0 if totals is None else totals.gradient_infs


_NEEDS = NewestRecord(lambda rank: rank.ranges.recommendation)


def _scale(recommendation: Recommendation, end: Literal["low", "high"]) -> float | None:
    """Return one end of the window of loss scales, as a scale."""
    window = recommendation.window
    exponent = window.low if end == "low" else window.high
    return None if exponent is None else _power_of_two(exponent)


def _power_of_two(exponent: int) -> float | None:
    """Return ``2**exponent``; ``None`` beyond what a sample can say, which no real scale is."""
    try:
        # Too large a one raises, too small a one comes out as 0, which would read as a scale.
        return math.ldexp(1.0, exponent) or None
    except OverflowError:
        return None


def _fits(recommendation: Recommendation) -> Table:
    for name, current in recommendation.fits.items():
        for fit in Fit:
            yield (name, fit.value), int(fit is current)


def _in_blocks(rank: RankView) -> dict[str, BlockOutcome]:
    # It takes 20 ms a rank to foretell casts, and gradients of data-parallel ranks are alike.
    return {} if rank.identity.local_rank else rank.ranges.block_outcomes


_BLOCKS = part(_in_blocks)


def _checked(elements: int) -> int | None:
    """Return a count of elements; ``None`` for -1, which stands for "not checked yet"."""
    return elements if elements >= 0 else None


def _underflow(rank: RankView) -> float | None:
    newest = rank.ranges.newest(Topic.GRADIENT)
    return None if newest is None else rank.ranges.lost_share(newest)


_NEWEST = NewestRecord(lambda rank: rank.ranges.newest(Topic.GRADIENT))

GRADIENTS: tuple[Metric, ...] = (
    Metric(
        "ampwatch_gradient_elements_total",
        "Gradient elements looked at in sampled iterations.",
        TOTALS.count(lambda totals: totals.gradient_elements),
    ),
    Metric(
        "ampwatch_gradient_zero_elements_total",
        "Gradient elements looked at that are zero.",
        TOTALS.count(lambda totals: totals.gradient_zeros),
    ),
    Metric(
        "ampwatch_gradient_underflow_elements_total",
        "Gradient elements looked at that are zero only because of the dtype of autocast (their own without one), at the loss scale of their time: zeros that it has flushed (which are among the zero elements as well), and others that it would flush. Zeros count as flushed by what the same gradient was when it last was more, shifted to the loss scale of now, or by the values beside them; of a gradient that never was anything but zeros that is not known, and nothing is counted.",
        TOTALS.count(lambda totals: totals.gradient_underflow),
    ),
    Metric(
        "ampwatch_gradient_subnormal_elements_total",
        "Gradient elements looked at that would be subnormal in the autocast dtype (their own without one) at the loss scale of their time.",
        TOTALS.count(lambda totals: totals.gradient_subnormal),
    ),
    Metric(
        "ampwatch_gradient_nonfinite_elements_total",
        "Gradient elements looked at that are NaN or infinite.",
        TOTALS.or_none.by("kind", read=_nonfinite),
    ),
    Metric(
        "ampwatch_gradient_sample_step",
        "Iteration of the newest sample of gradients, from 0, that was recorded.",
        _NEWEST.one(lambda newest: newest.step),
    ),
    Metric(
        "ampwatch_gradient_norm",
        "L2 norm of all gradients of the rank in the newest sample, without the loss scale, before clipping (without a scaler where the optimizer steps, so after it); absent if one of them was not finite. Of a sharded model that of the shards of the rank.",
        _NEWEST.one(gradient_norm),
    ),
    Metric(
        "ampwatch_gradient_underflow_ratio",
        "Share of the gradient elements of the newest sample that are zero only because of the dtype of autocast (their own without one): what ampwatch_gradient_underflow_elements_total counts. Absent where it is not known.",
        PER_RANK.one(_underflow),
    ),
    Metric(
        "ampwatch_gradient_zero_ratio",
        "Share of the finite gradient elements of the newest sample that are zero.",
        _NEWEST.one(zero_share),
    ),
    Metric(
        "ampwatch_gradient_sample_nonfinite_elements",
        "Gradient elements of the newest sample that are NaN or infinite.",
        _NEWEST.one(lambda newest: newest.histogram.nonfinite),
    ),
    Metric(
        "ampwatch_gradient_magnitude",
        "Magnitudes of the finite gradient elements above zero, without the loss scale, in the sampled iterations that this daemon has read, at most ten a second: starts again with it. Bounds are powers of two; there is no sum.",
        PER_RANK.one(lambda rank: rank.ranges.magnitude.distribution()),
        is_histogram=True,
    ),
    Metric(
        "ampwatch_scaled_gradient_amax",
        "Largest finite gradient magnitude of the newest sample, multiplied by the loss scale; absent if nothing in it was finite.",
        _NEWEST.one(finite_amax),
    ),
    Metric(
        "ampwatch_scaled_gradient_amax_max",
        "Largest scaled gradient magnitude of the newest sample, or of the last 60 s (up to 120 s) if one was larger, so that a peak between two scrapes is seen.",
        PER_RANK.one(lambda rank: rank.scaled_amax_max),
    ),
    Metric(
        "ampwatch_autocast_dtype_max",
        "Largest finite number of the autocast dtype (65504 for float16); of several dtypes the one with the smallest range; absent if none was seen.",
        NewestRecord(lambda rank: rank.ranges.autocast).one(lambda fmt: fmt.max),
    ),
    Metric(
        "ampwatch_loss_scale_window_low",
        "Smallest power of two as loss scale that flushes no more than a thousandth of the non-zero ones of the newest gradients to zero in the autocast dtype; without one, in the dtype of a model that is in float16 or bfloat16 as a whole. Of gradients that were flushed it is the window of what they were when they last were more, so that it says what would bring them back. Absent otherwise, and where some were flushed of which that is not known.",
        _NEEDS.one(lambda needs: _scale(needs, "low")),
    ),
    Metric(
        "ampwatch_loss_scale_window_high",
        "Largest power of two as loss scale at which none of the newest gradients (those that were flushed as they were before) overflows that dtype, below the scale at which some were infinite; if it is smaller than the low one, no scale does for both.",
        _NEEDS.one(lambda needs: _scale(needs, "high")),
    ),
    Metric(
        "ampwatch_gradient_format_fit",
        "Whether the newest gradients (those that were flushed as they were before), without the loss scale, fit the format in this way (1) or not (0); absent where some were NaN or infinite, or flushed of which it is not known what they were.",
        _NEEDS.by("format", "fit", read=_fits),
    ),
    Metric(
        "ampwatch_gradient_block_underflow_ratio",
        "Share of the non-zero gradient elements that would become zero in the block-scaled format, of the newest gradients whose blocks were measured, of the first rank of each host. Exact for the formats of OCP's Microscaling, an estimate for nvfp4. Absent before, and without the setting lab.",
        _BLOCKS.by(
            "format",
            read=lambda outcomes: each({n: o.flushed_share for n, o in outcomes.items()}),
        ),
    ),
    Metric(
        "ampwatch_gradient_block_sqnr_decibels",
        "Estimated signal-to-quantisation-noise ratio of the same gradients in the block-scaled format; 6 dB are one binary digit. Absent where a cast would change none of them.",
        _BLOCKS.by(
            "format",
            read=lambda outcomes: each(
                {n: o.sqnr_db for n, o in outcomes.items() if math.isfinite(o.sqnr_db)}
            ),
        ),
    ),
)

PARAMETERS_AND_BUFFERS: tuple[Metric, ...] = (
    Metric(
        "ampwatch_parameter_nonfinite_elements",
        "NaN and infinite elements of all parameters, each as of when it was last looked at: one look may be at a part of them.",
        TOTALS.one(lambda totals: _checked(totals.parameter_nonfinite)),
    ),
    Metric(
        "ampwatch_buffer_nonfinite_elements",
        "NaN and infinite elements of the buffers when they were last looked at.",
        TOTALS.one(lambda totals: _checked(totals.buffer_nonfinite)),
    ),
)
