"""Parts of the pictures of a report: SVG written by hand.

A report needs no script and no network, and prints. Colours are the custom properties of
``report.css``, so that a picture follows light and dark.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.report.markup import Markup, element

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

WIDE, NARROW = 760, 350
"""Widths for a screen and for a telephone: letters keep their size. Unit: px."""

LEFT, RIGHT = 58, 12
"""Room beside a picture, for the numbers of its axis. Unit: px."""


def frame(name: str, top: int, height: int, width: int) -> list[Markup]:
    """Return the frame of a panel with its name above it."""
    return [
        element(
            "rect",
            class_="panel",
            x=float(LEFT),
            y=float(top),
            width=float(width - LEFT - RIGHT),
            height=float(height),
        ),
        text(name, LEFT, top - 6, anchor="start", kind="axis"),
    ]


def picture(parts: Iterable[Markup], width: int, height: float, said: str) -> Markup:
    """Return a picture; ``said`` is what a screen reader says of it."""
    return element(
        "svg",
        *parts,
        viewBox=f"0 0 {width} {height:.0f}",
        role="img",
        aria_label=said,
        class_="wide" if width == WIDE else "narrow",
        style=f"max-width:{width}px",
    )


def text(words: str, x: float, y: float, *, anchor: str = "middle", kind: str = "") -> Markup:
    """Return a piece of text."""
    return element("text", words, x=float(x), y=float(y), text_anchor=anchor, class_=kind or None)


def linear(low: float, high: float, at_low: float, at_high: float) -> Callable[[float], float]:
    """Return the function that takes ``low`` to ``at_low`` and ``high`` to ``at_high``."""
    span = high - low or 1.0
    return lambda value: at_low + (value - low) / span * (at_high - at_low)


def ticks(low: float, high: float, most: int) -> list[int]:
    """Return whole numbers from ``low`` to ``high``, round ones, about ``most`` of them."""
    steps = [m * 10**p for p in range(19) for m in (1, 2, 5)]
    stride = next((s for s in steps if (high - low) / s <= most), steps[-1])
    first = math.ceil(low / stride) * stride
    return list(range(first, math.floor(high) + 1, stride))


def points_of(points: Iterable[tuple[float, float]]) -> str:
    """Return the points of a line."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def short(value: float) -> str:
    """Write ``value`` with two digits, as in "6.8e5"."""
    mantissa, e, exponent = f"{value:.2g}".partition("e")
    return f"{mantissa}{e}{int(exponent)}" if e else mantissa


def raised(exponent: int) -> str:
    """Write an exponent."""
    return str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
