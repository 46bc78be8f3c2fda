"""One row of the catalog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MetricType = Literal["counter", "gauge", "histogram", "info"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One exported family.

    Attributes:
        name: As users query it: with ``_total`` for a counter, ``_info`` for an info.
        type: Prometheus type; an info is a gauge of value 1 in the text format.
        labels: Names of all labels, those that tell ranks apart first.
        help: What one sample says, and where it comes from.
        unit: Base unit that ends the name; empty without one.
    """

    name: str
    type: MetricType
    labels: tuple[str, ...]
    help: str
    unit: str = ""

    @property
    def family(self) -> str:
        """The name of the family in OpenMetrics, without ``_total`` or ``_info``."""
        return self.name.removesuffix("_total").removesuffix("_info")
