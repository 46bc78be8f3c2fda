"""The picture of a culprit: its magnitudes against the limits of the format they have to fit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.numerics.formats import FORMATS
from ampwatch.report.markup import Markup, element
from ampwatch.report.svg import LEFT, RIGHT, linear, picture, raised, text, ticks
from ampwatch.report.words import percent
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ampwatch.numerics.exponents import ExponentHistogram
    from ampwatch.numerics.formats import FloatFormat
    from ampwatch.wire.records import Finding, RangeRecord

HISTOGRAM_HEIGHT = 170
RAREST = 1e-7
"""Share of the elements at the foot of the histogram."""

FAR = 24
"""Exponents shown beyond the values, at most, to have a limit in the picture."""


class Zone(NamedTuple):
    """A part of the axis of exponents.

    Attributes:
        left: Exponent at which it begins.
        right: Exponent at which it ends.
        name: What becomes of values in it.
        sort: ``flushed``, ``subnormal``, ``normal`` or ``overflow``.
    """

    left: float
    right: float
    name: str
    sort: str


def limits_of(
    record: RangeRecord, finding: Finding, facts: Mapping[str, str]
) -> FloatFormat | None:
    """Return the format whose limits matter for a measurement, if it is known.

    Gradients are mostly held in float32, but come out of ops in the dtype of autocast.
    """
    if finding.dtype in FORMATS:
        return FORMATS[finding.dtype]
    if record.topic in (Topic.GRADIENT, Topic.ACTIVATION_GRADIENT):
        autocast = [FORMATS[n] for n in facts.get("autocast_dtype", "").split(",") if n in FORMATS]
        if autocast:
            return min(autocast, key=lambda fmt: fmt.max)
    return FORMATS.get(record.dtype)


def zones(fmt: FloatFormat, topic: Topic) -> list[Zone]:
    """Return what becomes of values of each magnitude in ``fmt``."""
    if topic is Topic.UPDATE:  # as a share of the weight it is added to
        edge = math.log2(fmt.eps) - 1
        return [
            Zone(-math.inf, edge, "rounds away", "flushed"),
            Zone(edge, math.inf, "changes the weight", "normal"),
        ]
    flush = math.log2(fmt.min_subnormal) - 1
    normal = math.log2(fmt.min_normal)
    top = math.log2(fmt.max)
    return [
        Zone(-math.inf, flush, "becomes zero", "flushed"),
        Zone(flush, normal, "loses digits", "subnormal"),
        Zone(normal, top, "fits", "normal"),
        Zone(top, math.inf, "overflows", "overflow"),
    ]


def exponents(record: RangeRecord, fmt: FloatFormat | None, width: int) -> Markup | None:
    """Return the histogram of a measurement against the limits of a format.

    ``None`` if nothing was counted.
    """
    histogram = record.histogram
    whole = histogram.binned + histogram.nonfinite
    if not whole:
        return None
    parts_of = [] if fmt is None else zones(fmt, record.topic)
    low, high = _span(histogram, parts_of)
    top, foot = 34, 34 + HISTOGRAM_HEIGHT
    across = linear(low, high, LEFT + 26, width - RIGHT - 26)
    up = linear(math.log10(RAREST), 0.0, foot, top)

    def height(count: int) -> float:
        return min(up(math.log10(max(count / whole, RAREST))), foot - 1.5)

    parts: list[Markup] = []
    for zone in parts_of:
        parts += _ground(zone, across, (low, high), top, foot)
    for share in (1.0, 1e-2, 1e-4, 1e-6):
        y = up(math.log10(share))
        parts.append(
            element("line", class_="grid", x1=float(LEFT), x2=float(width - RIGHT), y1=y, y2=y)
        )
        parts.append(text(percent(share), LEFT - 4, y + 4, anchor="end"))
    bin_width = across(1.0) - across(0.0)
    bars = []
    for exponent, count in histogram.by_exponent().items():
        said = f"2{raised(exponent - 1)} to 2{raised(exponent)}: {count} elements, {percent(count / whole)}"
        bars.append((across(exponent - 1), bin_width, count, _fate(exponent, parts_of), said))
    column = 16.0
    for x, count, sort, name in (
        (float(LEFT + 3), histogram.zeros, "zeros", "zero"),
        (width - RIGHT - 3 - column, histogram.nonfinite, "overflow", "NaN or infinite"),
    ):
        bars.append((x, column, count, sort, f"{name}: {count} elements, {percent(count / whole)}"))
    for x, across_px, count, sort, said in bars:
        if count:
            y = height(count)
            inner = max(1.0, across_px - min(1.5, across_px / 4))
            parts.append(
                element(
                    "rect",
                    element("title", said),
                    class_=f"bar {sort}",
                    x=x,
                    y=y,
                    width=inner,
                    height=foot - y,
                )
            )
    parts.append(text("0", LEFT + 3 + column / 2, foot + 15))
    parts.append(text("NaN, inf", width - RIGHT, foot + 15, anchor="end"))
    marks = [e for e in ticks(low, high, 6) if across(e) < width - RIGHT - 74]
    parts += [text(f"2{raised(e)}", across(e), foot + 15) for e in marks]
    parts.append(text("magnitude", width / 2, foot + 32, kind="axis"))
    said = f"Elements by magnitude{'' if fmt is None else f' against the limits of {fmt.name}'}"
    return picture(parts, width, foot + 40, said)


def _span(histogram: ExponentHistogram, parts_of: Sequence[Zone]) -> tuple[int, int]:
    """Return the first and the last exponent in the picture."""
    first = histogram.first - 1 if histogram.counts else -8
    last = histogram.first + len(histogram.counts) - 1 if histogram.counts else 8
    edges = [r.right for r in parts_of[:-1]]
    left = min([first, *(math.floor(e) - 3 for e in edges if first - e <= FAR)])
    right = max([last, *(math.ceil(e) + 3 for e in edges if e - last <= FAR)])
    return max(left, first - FAR) - 1, min(right, last + FAR) + 1


def _ground(
    zone: Zone, across: Callable[[float], float], span: tuple[int, int], top: int, foot: int
) -> list[Markup]:
    left = max(zone.left, span[0])
    right = min(zone.right, span[1])
    if right <= left:
        return []
    x = across(left)
    wide = across(right) - x
    parts = [
        element(
            "rect",
            class_=f"ground {zone.sort}",
            x=x,
            y=float(top),
            width=wide,
            height=float(foot - top),
        )
    ]
    if zone.left > span[0]:
        parts.append(element("line", class_="edge", x1=x, x2=x, y1=float(top - 4), y2=float(foot)))
    letters = 6.2 * len(zone.name)
    if letters < wide:
        parts.append(text(zone.name, x + wide / 2, top - 8, kind=f"ground-name {zone.sort}"))
    elif zone.sort in ("overflow", "flushed"):  # what matters most is named in any case
        outer = zone.sort == "overflow"
        at, anchor = (x + wide + 24, "end") if outer else (x - 22, "start")
        parts.append(text(zone.name, at, top - 20, anchor=anchor, kind=f"ground-name {zone.sort}"))
    return parts


def _fate(exponent: int, parts_of: Iterable[Zone]) -> str:
    """Return the zone of a bin, by its middle."""
    middle = exponent - 0.5
    return next((r.sort for r in parts_of if r.left <= middle < r.right), "normal")
