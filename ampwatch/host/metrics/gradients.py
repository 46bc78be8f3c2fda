"""Metrics of the gradients of all modules together, of parameters and buffers, and of each module that has series."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.host.metrics.scopes import (
    PER_RANK,
    ROOT_MODULE,
    TOTALS,
    NewestRecord,
    each,
    exported,
    part,
    per_module,
)
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.whatif import Fit
from ampwatch.state import facts
from ampwatch.state.limits import finite_amax, zero_share
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from ampwatch.host.fleet import RankView
    from ampwatch.host.fleet.ranges import Recommendation
    from ampwatch.host.metrics.metric import Rows
    from ampwatch.host.metrics.scopes import Table
    from ampwatch.numerics.block_casts import BlockOutcome
    from ampwatch.wire.records import RangeRecord


_NEEDS = NewestRecord(lambda rank: rank.ranges.recommendation)


def _power_of_two(exponent: int | None) -> float | None:
    """Return ``2**exponent``; ``None`` beyond what a sample can say, which no real scale is."""
    if exponent is None:
        return None
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


GRADIENTS: Rows = {
    **exported(facts.GRADIENTS),
    "ampwatch_gradient_nonfinite_elements_total": (
        "Gradient elements measured that are NaN or infinite.",
        TOTALS.counts(
            "kind", ("nan", "inf"), lambda totals: (totals.gradient_nans, totals.gradient_infs)
        ),
    ),
    "ampwatch_gradient_magnitude": (
        "Magnitudes of finite non-zero gradient elements, without the loss scale, in samples since this daemon started. Bounds are powers of two; there is no sum.",
        PER_RANK.histogram(read=lambda rank: [((), rank.ranges.magnitude.distribution())]),
    ),
    "ampwatch_scaled_gradient_amax_max": (
        "Largest ampwatch_scaled_gradient_amax of the newest sample and of the last 60 to 120 s.",
        PER_RANK.one(lambda rank: rank.scaled_amax_max),
    ),
    "ampwatch_loss_scale_window_low": (
        "Smallest power of two as loss scale that flushes at most a thousandth of the newest gradients to zero in the autocast dtype, or in that of a model in float16 or bfloat16 as a whole. Gradients that were flushed count as they were before; absent where that is not known.",
        _NEEDS.one(lambda needs: _power_of_two(needs.window.low)),
    ),
    "ampwatch_loss_scale_window_high": (
        "Largest power of two as loss scale at which none of the newest gradients overflows that dtype; if it is below ampwatch_loss_scale_window_low, no scale fits all.",
        _NEEDS.one(lambda needs: _power_of_two(needs.window.high)),
    ),
    "ampwatch_gradient_format_fit": (
        "Whether the newest gradients, without the loss scale, fit the format in this way (1) or not (0); absent where some are NaN or infinite.",
        _NEEDS.by("format", "fit", read=_fits),
    ),
    "ampwatch_gradient_block_underflow_ratio": (
        "Share of the non-zero gradient elements that would become zero in the block-scaled format, of the first rank of each host, with the setting lab. Exact for OCP's formats, an estimate for nvfp4.",
        _BLOCKS.by(
            "format",
            read=lambda outcomes: each({n: o.flushed_share for n, o in outcomes.items()}),
        ),
    ),
    "ampwatch_gradient_block_sqnr_decibels": (
        "Estimated signal-to-quantisation-noise ratio of the same gradients; 6 dB are one binary digit. Absent where a cast changes nothing.",
        _BLOCKS.by(
            "format",
            read=lambda outcomes: each(
                {n: o.sqnr_db for n, o in outcomes.items() if math.isfinite(o.sqnr_db)}
            ),
        ),
    ),
}

PARAMETERS_AND_BUFFERS: Rows = exported(facts.PARAMETERS_AND_BUFFERS)


_GRADIENTS = per_module(Topic.GRADIENT)
_ACTIVATIONS = per_module(Topic.ACTIVATION)


def _dtype_max(record: RangeRecord) -> float | None:
    fmt = FORMATS.get(record.dtype)
    return None if fmt is None else fmt.max


def _outlier_ratio(record: RangeRecord) -> float | None:
    mean = record.histogram.root_mean_square
    amax = finite_amax(record)
    return amax / mean if mean > 0.0 and amax is not None else None


def _lost_shares(rank: RankView) -> Table:
    # Not by the scope of gradients: how much a module has lost depends on the other modules.
    for module in rank.ranges.modules.exported:
        record = rank.ranges.newest(Topic.GRADIENT, module)
        share = None if record is None else rank.ranges.lost_share(record)
        if share is not None:
            yield (module or ROOT_MODULE,), share


MODULES: Rows = {
    "ampwatch_module_gradient_amax": (
        "Largest finite gradient magnitude of the module's parameters, multiplied by the loss scale.",
        _GRADIENTS.one(finite_amax),
    ),
    "ampwatch_module_gradient_zero_ratio": (
        "Share of the gradient elements of the module's parameters that are zero.",
        _GRADIENTS.one(zero_share),
    ),
    "ampwatch_module_gradient_underflow_ratio": (
        "Share of the gradient elements of the module's parameters that became zero only because the dtype cannot hold them.",
        PER_RANK.by("module", read=_lost_shares),
    ),
    "ampwatch_module_gradient_nonfinite_elements_total": (
        "Gradient elements of the module's parameters that were NaN or infinite.",
        _GRADIENTS.by(
            "kind",
            read=lambda record: [(("nan",), record.total_nans), (("inf",), record.total_infs)],
        ),
    ),
    "ampwatch_module_activation_amax": (
        "Largest finite magnitude of the module's output.",
        _ACTIVATIONS.one(finite_amax),
    ),
    "ampwatch_module_activation_dtype_max": (
        "Largest finite number of the dtype of the module's output; absent if there are several.",
        _ACTIVATIONS.one(_dtype_max),
    ),
    "ampwatch_module_activation_outlier_ratio": (
        "Largest finite magnitude of the module's output over the root mean square of its elements: how much larger outlier features are. To within a tenth for usual outputs, as the mean follows from exponents.",
        _ACTIVATIONS.one(_outlier_ratio),
    ),
    "ampwatch_module_activation_gradient_amax": (
        "Largest finite magnitude of the gradients of the module's output, multiplied by the loss scale.",
        per_module(Topic.ACTIVATION_GRADIENT).one(finite_amax),
    ),
    "ampwatch_module_update_unchanged_ratio": (
        "Share of a subsample of the module's parameters that the optimizer left as they were.",
        per_module(Topic.UPDATE).one(zero_share),
    ),
    "ampwatch_module_update_ratio": (
        "Median change of an element of the module's parameters by the optimizer, as a share of its magnitude: to within a factor of 1.5.",
        per_module(Topic.UPDATE).one(
            lambda record: record.histogram.median if record.histogram.binned else None
        ),
    ),
}
