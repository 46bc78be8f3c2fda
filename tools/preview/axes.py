"""The scale of a time series: how far it reaches, where its ticks stand, what they say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tools.preview import units

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tools.preview.fields import FieldLook

TICKS = 5


@dataclass(slots=True)
class Axis:
    """A vertical scale.

    Attributes:
        unit: Of its ticks.
        decimals: Of its ticks, if the panel says so.
        base: Of the logarithm; 0 for a linear scale.
        least: Where it begins, if the panel says so.
        most: Where it ends, if the panel says so.
    """

    unit: str
    decimals: int | None = None
    base: float = 0.0
    least: float | None = None
    most: float | None = None
    _low: float = math.inf
    _high: float = -math.inf
    _soft: tuple[float, float] = (math.inf, -math.inf)

    def reach(self, values: Iterable[float | None]) -> None:
        """Let it reach to ``values``."""
        there = [v for v in map(self.drawable, values) if v is not None]
        self._low = min([self._low, *there])
        self._high = max([self._high, *there])

    def at_least(self, low: float, high: float) -> None:
        """Let it begin at ``low`` or below, and end at ``high`` or above, once it has values."""
        self._soft = low, high

    def span(self) -> tuple[float, float]:
        """Return where it begins and ends."""
        low, high = self._low, self._high
        if not math.isfinite(low):
            low, high = (1.0, 2.0) if self.base else (0.0, 1.0)
        low, high = min(low, self._soft[0]), max(high, self._soft[1])
        low = low if self.least is None else float(self.least)
        high = high if self.most is None else float(self.most)
        if self.base:
            low = max(low, 1e-45)
            powers = math.floor(math.log(low, self.base)), math.ceil(math.log(high, self.base))
            return self.base ** powers[0], self.base ** max(powers[1], powers[0] + 1)
        if low == high and self.least is not None:
            high = low + 1
        elif low == high:
            low, high = (0.0, 2 * high) if high > 0 else (low - 1, high + 1)
        room = 0.05 * (high - low)
        if self.least is None and not 0 <= low <= 2 * room:
            low -= room
        elif self.least is None:
            low = min(low, 0.0)
        return low, high + (room if self.most is None else 0.0)

    def drawable(self, value: float | None) -> float | None:
        """Return a value as it can be drawn, ``None`` if this scale has no place for it."""
        if value is None or not math.isfinite(value) or (self.base and value <= 0):
            return None
        return value

    def place(self, value: float) -> float:
        """Return where Plotly draws a shape at ``value``."""
        return math.log10(value) if self.base else value

    def ticks(self) -> list[float]:
        """Return where it has ticks."""
        low, high = self.span()
        if self.base:
            first = round(math.log(low, self.base))
            last = round(math.log(high, self.base))
            stride = max(1, math.ceil((last - first) / (TICKS + 1)))
            return [self.base**power for power in range(first, last + 1, stride)]
        base = 1024.0 if self.unit in ("bytes", "binBps") else 10.0
        rough = (high - low) / TICKS
        power = base ** math.floor(math.log(rough, base))
        sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if base > 10 else (1, 2, 2.5, 5, 10)
        every = next(size * power for size in sizes if size * power >= rough * 0.999)
        steps = range(math.ceil(low / every - 1e-9), math.floor(high / every + 1e-9) + 1)
        return [i * every for i in steps]

    def layout(self, number: int) -> dict[str, Any]:
        """Return it as Plotly has it: the first on the left, others on the right."""
        low, high = self.span()
        ticks = self.ticks()
        return {
            "type": "log" if self.base else "linear",
            "range": [self.place(low), self.place(high)],
            "tickvals": ticks,
            "ticktext": [units.written(_clean(t), self.unit, self.decimals) for t in ticks],
            "side": "right" if number else "left",
            "overlaying": "y" if number else None,
            "gridcolor": "rgba(204,204,220,0.10)",
            "showgrid": number == 0,
            "automargin": True,
            "zeroline": False,
        }


def _clean(value: float) -> float:
    """Return a tick without the dust of floating-point multiplication."""
    return float(f"{value:.12g}")


def axis_of(look: FieldLook) -> Axis:
    """Return the axis of a series, before it has taken any; it reaches at least to its soft limits."""
    scale = look.custom.get("scaleDistribution", {})
    axis = Axis(
        unit=look.options.get("unit", ""),
        decimals=look.options.get("decimals"),
        base=float(scale.get("log", 2)) if scale.get("type") == "log" else 0.0,
        least=look.options.get("min"),
        most=look.options.get("max"),
    )
    low, high = look.custom.get("axisSoftMin"), look.custom.get("axisSoftMax")
    axis.at_least(math.inf if low is None else low, -math.inf if high is None else high)
    return axis
