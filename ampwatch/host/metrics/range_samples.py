"""What the sampled ranges have to say about each metric of the catalog."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ampwatch.host.fleet.limits import finite_amax
from ampwatch.host.metrics.catalog import ROOT_MODULE
from ampwatch.host.metrics.reading import one
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.whatif import Fit
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.host.fleet import RankView
    from ampwatch.host.metrics.reading import OfRank, Samples
    from ampwatch.wire.records import RangeRecord


def _sampling(name: str) -> OfRank:
    """Return the samples of a gauge of sampling, absent before the first sample."""

    def read(rank: RankView) -> Any:
        totals = rank.ranges.totals
        return None if totals is None else getattr(totals, name)

    return one(read)


def _total(name: str) -> OfRank:
    """Return the samples of a counter of sampling, born at 0."""
    return one(lambda rank: _count(rank, name))


def _count(rank: RankView, name: str) -> int:
    totals = rank.ranges.totals
    return 0 if totals is None else int(getattr(totals, name))


def _samples(rank: RankView) -> Samples:
    totals = rank.ranges.totals
    for topic in Topic:
        yield (topic.label,), 0 if totals is None else totals.samples[topic]


def _last_samples(rank: RankView) -> Samples:
    for topic in Topic:
        time_ns = rank.ranges.sampled_ns(topic)
        if time_ns is not None:
            yield (topic.label,), time_ns / 1e9


def _standard_errors(rank: RankView) -> Samples:
    """Return, per topic that was measured, what a share of the least counted module may be off by."""
    for topic in Topic:
        modules = rank.ranges.modules.by_name.values()
        records = [topics[topic] for topics in modules if topic in topics]
        # Of updates the sensor compares a subsample to begin with.
        counted = [
            r.histogram.binned
            for r in records
            if r.histogram.binned and (topic is Topic.UPDATE or r.histogram.is_subsample)
        ]
        if records:
            yield (topic.label,), 0.5 / math.sqrt(min(counted)) if counted else 0.0


def _gradient_nonfinite(rank: RankView) -> Samples:
    yield ("nan",), _count(rank, "gradient_nans")
    yield ("inf",), _count(rank, "gradient_infs")


def _looked_at(name: str) -> OfRank:
    """Return the samples of a count that is -1 before the first look."""

    def read(rank: RankView) -> int | None:
        totals = rank.ranges.totals
        count = -1 if totals is None else int(getattr(totals, name))
        return count if count >= 0 else None

    return one(read)


def _scaled_amax(rank: RankView) -> float | None:
    newest = rank.ranges.newest(Topic.GRADIENT)
    return None if newest is None else finite_amax(newest)


def _autocast_max(rank: RankView) -> float | None:
    autocast = rank.ranges.autocast
    return None if autocast is None else autocast.max


def _window(end: str) -> OfRank:
    """Return the samples of one end of the window of loss scales."""

    def read(rank: RankView) -> float | None:
        recommendation = rank.ranges.recommendation
        exponent = None if recommendation is None else getattr(recommendation.window, end)
        return None if exponent is None else _power_of_two(exponent)

    return one(read)


def _power_of_two(exponent: int) -> float | None:
    """Return ``2**exponent``; ``None`` beyond what a sample can say, which no real scale is."""
    try:
        return math.ldexp(1.0, exponent) or None
    except OverflowError:
        return None


def _fits(rank: RankView) -> Samples:
    recommendation = rank.ranges.recommendation
    if recommendation is None:
        return
    for name, current in recommendation.fits.items():
        for fit in Fit:
            yield (name, fit.value), int(fit is current)


def _of_modules(topic: Topic, read: Callable[[RankView, RangeRecord], float | None]) -> OfRank:
    """Return the samples of a family with one value per exported module that has ``topic``."""

    def samples(rank: RankView) -> Samples:
        for module in rank.ranges.modules.exported:
            record = rank.ranges.newest(topic, module)
            value = None if record is None else read(rank, record)
            if value is not None:
                yield (module or ROOT_MODULE,), value

    return samples


def _amax(_rank: RankView, record: RangeRecord) -> float | None:
    return finite_amax(record)


def _zero_share(_rank: RankView, record: RangeRecord) -> float | None:
    return record.histogram.zero_share if record.histogram.binned else None


def _lost_share(rank: RankView, record: RangeRecord) -> float | None:
    return rank.ranges.lost_share(record)


def _dtype_max(_rank: RankView, record: RangeRecord) -> float | None:
    fmt = FORMATS.get(record.dtype)
    return None if fmt is None else fmt.max


def _module_nonfinite(rank: RankView) -> Samples:
    for module in rank.ranges.modules.exported:
        record = rank.ranges.newest(Topic.GRADIENT, module)
        if record is not None:
            yield (module or ROOT_MODULE, "nan"), record.total_nans
            yield (module or ROOT_MODULE, "inf"), record.total_infs


OF_RANGES: dict[str, OfRank] = {
    "ampwatch_samples_total": _samples,
    "ampwatch_last_sample_timestamp_seconds": _last_samples,
    "ampwatch_sample_standard_error_ratio": _standard_errors,
    "ampwatch_samples_dropped_total": _total("samples_dropped"),
    "ampwatch_sampling_interval_steps": one(lambda rank: rank.sampling_interval),
    "ampwatch_device_overhead_seconds_total": one(lambda rank: _count(rank, "device_ns") / 1e9),
    "ampwatch_tensors_refused": _sampling("tensors_refused"),
    "ampwatch_modules_left_out": _sampling("modules_left_out"),
    "ampwatch_modules_untracked": one(lambda rank: rank.ranges.modules.num_untracked),
    "ampwatch_gradient_elements_total": _total("gradient_elements"),
    "ampwatch_gradient_zero_elements_total": _total("gradient_zeros"),
    "ampwatch_gradient_underflow_elements_total": _total("gradient_underflow"),
    "ampwatch_gradient_subnormal_elements_total": _total("gradient_subnormal"),
    "ampwatch_gradient_nonfinite_elements_total": _gradient_nonfinite,
    "ampwatch_gradient_magnitude": one(lambda rank: rank.ranges.magnitude),
    "ampwatch_scaled_gradient_amax": one(_scaled_amax),
    "ampwatch_scaled_gradient_amax_max": one(lambda rank: rank.scaled_amax_max),
    "ampwatch_autocast_dtype_max": one(_autocast_max),
    "ampwatch_loss_scale_window_low": _window("low"),
    "ampwatch_loss_scale_window_high": _window("high"),
    "ampwatch_gradient_format_fit": _fits,
    "ampwatch_parameter_nonfinite_elements": _looked_at("parameter_nonfinite"),
    "ampwatch_buffer_nonfinite_elements": _looked_at("buffer_nonfinite"),
    "ampwatch_module_gradient_amax": _of_modules(Topic.GRADIENT, _amax),
    "ampwatch_module_gradient_zero_ratio": _of_modules(Topic.GRADIENT, _zero_share),
    "ampwatch_module_gradient_underflow_ratio": _of_modules(Topic.GRADIENT, _lost_share),
    "ampwatch_module_gradient_nonfinite_elements_total": _module_nonfinite,
    "ampwatch_module_activation_amax": _of_modules(Topic.ACTIVATION, _amax),
    "ampwatch_module_activation_dtype_max": _of_modules(Topic.ACTIVATION, _dtype_max),
    "ampwatch_module_activation_gradient_amax": _of_modules(Topic.ACTIVATION_GRADIENT, _amax),
    "ampwatch_module_update_unchanged_ratio": _of_modules(Topic.UPDATE, _zero_share),
}
"""Name of a metric to its samples of one rank, without the labels that tell ranks apart."""
