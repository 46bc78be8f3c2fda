"""Grafana's time range of a query: its step, ``$__interval``, ``$__rate_interval`` and their kin."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

_STEPS_MS = (
    1,
    10,
    20,
    50,
    100,
    200,
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    15_000,
    20_000,
    30_000,
    60_000,
    120_000,
    300_000,
    600_000,
    900_000,
    1_200_000,
    1_800_000,
    3_600_000,
    7_200_000,
    10_800_000,
    21_600_000,
    43_200_000,
    86_400_000,
)
_BOUNDS_MS = tuple((a + b) / 2 for a, b in pairwise(_STEPS_MS))


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """Span of time that is drawn.

    Attributes:
        start: Unix time. Unit: s.
        end: Unix time. Unit: s.
        scrape_seconds: What the data source says of the scrape interval (``timeInterval``). Unit: s.
    """

    start: float
    end: float
    scrape_seconds: float = 15.0

    @property
    def seconds(self) -> float:
        """Length of the span. Unit: s."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Interval:
    """Resolution at which a panel asks.

    Attributes:
        span: Time that is drawn.
        step: Time between two points: ``$__interval``. Unit: s.
        rate: ``$__rate_interval``: four scrapes at least, so that a rate has its two samples. Unit: s.
    """

    span: TimeSpan
    step: float
    rate: float

    def values(self) -> dict[str, str]:
        """Return the built-in variables by name."""
        span = self.span
        return {
            "__interval": duration(self.step),
            "__interval_ms": f"{self.step * 1e3:.0f}",
            "__rate_interval": duration(self.rate),
            "__rate_interval_ms": f"{self.rate * 1e3:.0f}",
            "__range": duration(round(span.seconds)),
            "__range_s": f"{span.seconds:.0f}",
            "__range_ms": f"{span.seconds * 1e3:.0f}",
            "__from": f"{span.start * 1e3:.0f}",
            "__to": f"{span.end * 1e3:.0f}",
        }


def interval(
    span: TimeSpan, points: int, *, of_panel: float | None = None, of_query: float | None = None
) -> Interval:
    """Return how finely a panel asks.

    Args:
        span: Time that is drawn.
        points: At most so many (``maxDataPoints``, else the width of the panel in pixels).
        of_panel: Its minimal interval, which bounds the step only. Unit: s.
        of_query: Minimal step of the query, which stands for the scrape interval as well. Unit: s.
    """
    scrape = span.scrape_seconds if of_query is None else of_query
    wanted = span.seconds * 1e3 / points
    rounded = _STEPS_MS[bisect_right(_BOUNDS_MS, wanted)] / 1e3
    step = max(rounded, scrape, of_panel or 0.0)
    return Interval(span, step, max(step + scrape, 4 * scrape))


def duration(seconds: float) -> str:
    """Return a duration as PromQL writes it."""
    if seconds >= 1 and seconds == int(seconds):
        return f"{seconds:.0f}s"
    return f"{seconds * 1e3:.0f}ms"


def seconds(text: str) -> float:
    """Return a duration of PromQL or Grafana in seconds.

    Raises:
        ValueError: If ``text`` is not a number and a unit.
    """
    for unit, factor in (("ms", 1e-3), ("s", 1), ("m", 60), ("h", 3600), ("d", 86400)):
        number = text.removesuffix(unit)
        if number != text and number.replace(".", "", 1).isdigit():
            return float(number) * factor
    msg = f"expected a duration such as 15s or 1m, got {text!r}"
    raise ValueError(msg)
