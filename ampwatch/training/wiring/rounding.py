"""The listeners that look for rounding: one each for casts, sums, averages and gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.training.sensors.rounding.averages import WeightAverages
from ampwatch.training.sensors.rounding.fp8_casts import Fp8Casts
from ampwatch.training.sensors.rounding.gradient_sums import GradientSums
from ampwatch.training.sensors.rounding.lossy_casts import LossyCasts
from ampwatch.training.sensors.rounding.metric_sums import MetricSums
from ampwatch.training.transfer.deferred import Deferred

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.training.model.names import Names
    from ampwatch.training.ops.listener import OpListener


def rounding_listeners(
    names: Names, observe: Callable[[object], None], deferred: Deferred | None = None
) -> list[OpListener]:
    """Return the listeners.

    Args:
        names: Names of the watched parameters.
        observe: Told of what they see, see ``diagnosis.rounding_evidence``.
        deferred: Reads values; one of their own by default.
    """
    reader = deferred or Deferred()
    return [
        LossyCasts(reader, observe),
        Fp8Casts(reader, observe),
        MetricSums(reader, observe),
        WeightAverages(names, reader, observe),
        GradientSums(names, reader, observe),
    ]
