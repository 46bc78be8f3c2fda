"""The listeners that look for rounding: one each for casts, sums, averages and gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.sensors.averages import WeightAverages
from ampwatch.sensors.deferred import Deferred
from ampwatch.sensors.fp8casts import Fp8Casts
from ampwatch.sensors.gradsums import GradientSums
from ampwatch.sensors.lossycasts import LossyCasts
from ampwatch.sensors.metricsums import MetricSums

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.sensors.names import Names
    from ampwatch.sensors.oplistener import OpListener


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
