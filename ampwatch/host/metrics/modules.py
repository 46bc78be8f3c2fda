"""Metrics of each module that has series of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.host.metrics.metric import Metric
from ampwatch.host.metrics.scopes import PER_RANK, ROOT_MODULE, per_module
from ampwatch.numerics.formats import FORMATS
from ampwatch.state.limits import finite_amax, zero_share
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from ampwatch.host.fleet import RankView
    from ampwatch.host.metrics.scopes import Table
    from ampwatch.wire.records import RangeRecord

_GRADIENTS = per_module(Topic.GRADIENT)
_ACTIVATIONS = per_module(Topic.ACTIVATION)


def _dtype_max(record: RangeRecord) -> float | None:
    fmt = FORMATS.get(record.dtype)
    return None if fmt is None else fmt.max


def _outlier_ratio(record: RangeRecord) -> float | None:
    mean = record.histogram.root_mean_square
    amax = finite_amax(record)
    return amax / mean if mean > 0.0 and amax is not None else None


def _update_share(record: RangeRecord) -> float | None:
    return record.histogram.median if record.histogram.binned else None


def _lost_shares(rank: RankView) -> Table:
    # Not by the scope of gradients: how much a module has lost depends on the other modules.
    for module in rank.ranges.modules.exported:
        record = rank.ranges.newest(Topic.GRADIENT, module)
        share = None if record is None else rank.ranges.lost_share(record)
        if share is not None:
            yield (module or ROOT_MODULE,), share


MODULES: tuple[Metric, ...] = (
    Metric(
        "ampwatch_module_gradient_amax",
        "Largest finite gradient magnitude of the module's parameters when the module was last measured, multiplied by the loss scale.",
        _GRADIENTS.one(finite_amax),
    ),
    Metric(
        "ampwatch_module_gradient_zero_ratio",
        "Share of the gradient elements of the module's parameters that are zero, when the module was last measured.",
        _GRADIENTS.one(zero_share),
    ),
    Metric(
        "ampwatch_module_gradient_underflow_ratio",
        "Share of all gradient elements of the module's parameters that are zero only because of the dtype of autocast (their own without one), when the module was last measured: zeros that it has flushed, and others that it would flush. Absent where nothing but zeros was ever measured, of which that is not known.",
        PER_RANK.by("module", read=_lost_shares),
    ),
    Metric(
        "ampwatch_module_gradient_nonfinite_elements_total",
        "Gradient elements of the module's parameters seen so far that are NaN or infinite.",
        _GRADIENTS.by(
            "kind",
            read=lambda record: [(("nan",), record.total_nans), (("inf",), record.total_infs)],
        ),
    ),
    Metric(
        "ampwatch_module_activation_amax",
        "Largest finite magnitude of the module's output when the module was last measured.",
        _ACTIVATIONS.one(finite_amax),
    ),
    Metric(
        "ampwatch_module_activation_dtype_max",
        "Largest finite number of the dtype of the module's output; absent if there are several.",
        _ACTIVATIONS.one(_dtype_max),
    ),
    Metric(
        "ampwatch_module_activation_outlier_ratio",
        "Largest finite magnitude of the module's output over the root mean square of its elements when the module was last measured: how much larger outlier features are. The mean follows from exponents, of usual outputs to within a tenth, of a few equal values to within a third; absent of nothing but zeros.",
        _ACTIVATIONS.one(_outlier_ratio),
    ),
    Metric(
        "ampwatch_module_activation_gradient_amax",
        "Largest finite magnitude of the gradients of the module's output when the module was last measured, multiplied by the loss scale.",
        per_module(Topic.ACTIVATION_GRADIENT).one(finite_amax),
    ),
    Metric(
        "ampwatch_module_update_unchanged_ratio",
        "Share of the elements of the module's parameters, of a subsample, that the optimizer left as they were when the module was last measured.",
        per_module(Topic.UPDATE).one(zero_share),
    ),
    Metric(
        "ampwatch_module_update_ratio",
        "Median share of its own magnitude by which the optimizer has changed an element of the module's parameters, of a subsample, when the module was last measured: to within a factor of 1.5, as it follows from exponents.",
        per_module(Topic.UPDATE).one(_update_share),
    ),
)
