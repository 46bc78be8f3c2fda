"""Pictures of a report, in SVG: the history around an incident, and magnitudes against the limits of a format.

A report needs no script and no network, and prints. Colours are the custom properties of
``report.css``, so that a picture follows light and dark.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.numerics.formats import FORMATS
from ampwatch.report.accounts import figure
from ampwatch.report.markup import Child, Markup, element
from ampwatch.report.words import percent, power
from ampwatch.wire.records import SkipClass, Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ampwatch.numerics.exponents import ExponentHistogram
    from ampwatch.numerics.formats import FloatFormat
    from ampwatch.wire.records import Finding, RangeRecord, StepRecord


WIDE, NARROW = 760, 350
"""Widths for a screen and for a telephone: letters keep their size. Unit: px."""

LEFT, RIGHT = 58, 12
"""Room beside a picture, for the numbers of its axis. Unit: px."""


def frame(name: str, top: int, height: int, width: int) -> list[Markup]:
    """Return the frame of a panel with its name above it."""
    panel = _box("panel", LEFT, top, width - LEFT - RIGHT, height)
    return [panel, text(name, LEFT, top - 6, anchor="start", kind="axis")]


def _box(kind: str, x: float, y: float, width: float, height: float, *children: Child) -> Markup:
    return element("rect", *children, class_=kind, x=x, y=y, width=width, height=height)


def _line(kind: str, start: tuple[float, float], end: tuple[float, float], *on: Child) -> Markup:
    (x1, y1), (x2, y2) = start, end
    return element("line", *on, class_=kind, x1=x1, x2=x2, y1=y1, y2=y2)


def picture(parts: Iterable[Markup], width: int, height: float, label: str) -> Markup:
    """Return a picture; ``label`` is what a screen reader says of it."""
    return element(
        "svg",
        *parts,
        viewBox=f"0 0 {width} {height:.0f}",
        role="img",
        aria_label=label,
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


BEFORE, AFTER = 48, 96
"""Steps shown before the first and after the first of a finding."""

SCALE_HEIGHT, LOSS_HEIGHT, GAP = 124, 74, 34

LARGEST = 1e300

MANIFOLD = 1000.0
"""A loss that moves by more than this factor is shown by its logarithm."""


def around(steps: Sequence[StepRecord], finding: Finding) -> list[StepRecord]:
    """Return the steps around the beginning of a finding; the newest if there are none."""
    first = finding.first_step
    near = [s for s in steps if first - BEFORE <= s.step <= first + AFTER]
    return near or list(steps[-AFTER:])


def history_picture(steps: Sequence[StepRecord], width: int, since: int = -1) -> Markup | None:
    """Return loss scale, skipped steps and loss over some steps, and where a finding was seen first.

    ``None`` without two steps, or if there is neither a scale nor a loss.

    Args:
        steps: The steps, in order.
        width: Unit: px.
        since: The first step of that finding; -1 without one.
    """
    scaled = [s for s in steps if 0.0 < s.loss_scale < math.inf]
    losses = [s for s in steps if s.num_losses > 0]
    if len(steps) < 2 or not (scaled or losses):
        return None
    first, last = steps[0].step, steps[-1].step
    across = linear(first, last, LEFT, width - RIGHT)
    top = 30
    parts: list[Markup] = []
    if scaled:
        parts += _scale_panel(steps, scaled, across, top, width)
        top += SCALE_HEIGHT + GAP
    if losses:
        parts += _loss_panel(losses, across, top, width)
        top += LOSS_HEIGHT + GAP
    bottom = top - GAP + 4
    if first <= since <= last:
        x = across(since)
        side = "end" if x > width / 2 else "start"
        parts += [
            _line("since", (x, 16), (x, bottom)),
            text(f"first seen: step {since}", x, 11, anchor=side, kind="since-name"),
        ]
    parts += [text(str(s), across(s), bottom + 15) for s in ticks(first, last, 4)]
    parts.append(text("step", width - RIGHT, bottom + 31, anchor="end", kind="axis"))
    label = f"Loss scale, skipped steps and loss from step {first} to {last}"
    return picture(parts, width, bottom + 38, label)


def _scale_panel(
    steps: Sequence[StepRecord],
    scaled: Sequence[StepRecord],
    across: Callable[[float], float],
    top: int,
    width: int,
) -> list[Markup]:
    exponents = [math.log2(s.loss_scale) for s in scaled]
    low, high = math.floor(min(exponents)) - 1, math.ceil(max(exponents)) + 1
    up = linear(low, high, top + SCALE_HEIGHT - 14, top)
    parts = frame("loss scale", top, SCALE_HEIGHT, width)
    parts += [text(power(e), LEFT - 6, up(e) + 4, anchor="end") for e in ticks(low, high, 4)]
    points: list[tuple[float, float]] = []
    for s, e in zip(scaled, exponents, strict=True):
        if points:  # a scale holds until it changes
            points.append((across(s.step), points[-1][1]))
        points.append((across(s.step), up(e)))
    parts.append(element("polyline", class_="scale", points=points_of(points)))
    for s in steps:
        if s.skip_class is not SkipClass.NONE:
            x = across(s.step)
            foot = top + SCALE_HEIGHT - 1
            label = s.skip_class.label
            title = element("title", f"step {s.step}: skipped, {label}")
            parts.append(_line(f"skip {label}", (x, foot - 10), (x, foot), title))
    return parts


def _loss_panel(
    losses: Sequence[StepRecord], across: Callable[[float], float], top: int, width: int
) -> list[Markup]:
    finite = sorted(s.loss for s in losses if _is_drawn(s.loss))
    parts = frame("loss", top, LOSS_HEIGHT, width)
    if finite:
        low, high = finite[0], finite[-1]
        # A loss that explodes would hide all that it did before.
        scale = math.log10 if low > 0.0 and high > MANIFOLD * low else float
        up = linear(scale(low), scale(high), top + LOSS_HEIGHT - 6, top + 12)
        parts += [text(short(v), LEFT - 6, up(scale(v)) + 4, anchor="end") for v in {low, high}]
        runs: list[list[tuple[float, float]]] = [[]]
        for s in losses:
            if _is_drawn(s.loss):
                runs[-1].append((across(s.step), up(scale(s.loss))))
            else:
                runs.append([])
        parts += [element("polyline", class_="loss", points=points_of(r)) for r in runs if r]
    for s in losses:
        if not _is_drawn(s.loss):
            name = element("title", f"step {s.step}: the loss is {figure(s.loss)}")
            x = across(s.step)
            parts.append(element("circle", name, class_="nonfinite", cx=x, cy=top + 7, r=2.5))
    return parts


def _is_drawn(loss: float) -> bool:
    """Return whether a loss has a place on an axis: the difference of two must be a number."""
    return abs(loss) <= LARGEST


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
        parts.append(_line("grid", (LEFT, y), (width - RIGHT, y)))
        parts.append(text(percent(share), LEFT - 4, y + 4, anchor="end"))
    bin_width = across(1.0) - across(0.0)
    bars = []
    for exponent, count in histogram.by_exponent().items():
        label = f"{power(exponent - 1)} to {power(exponent)}: {count} elements, {percent(count / whole)}"
        bars.append((across(exponent - 1), bin_width, count, _fate(exponent, parts_of), label))
    column = 16.0
    for x, count, sort, name in (
        (LEFT + 3.0, histogram.zeros, "zeros", "zero"),
        (width - RIGHT - 3 - column, histogram.nonfinite, "overflow", "NaN or infinite"),
    ):
        bars.append((x, column, count, sort, f"{name}: {count} elements, {percent(count / whole)}"))
    for x, across_px, count, sort, label in bars:
        if count:
            y = height(count)
            inner = max(1.0, across_px - min(1.5, across_px / 4))
            title = element("title", label)
            parts.append(_box(f"bar {sort}", x, y, inner, foot - y, title))
    parts.append(text("0", LEFT + 3 + column / 2, foot + 15))
    parts.append(text("NaN, inf", width - RIGHT, foot + 15, anchor="end"))
    marks = [e for e in ticks(low, high, 6) if across(e) < width - RIGHT - 74]
    parts += [text(power(e), across(e), foot + 15) for e in marks]
    parts.append(text("magnitude", width / 2, foot + 32, kind="axis"))
    label = f"Elements by magnitude{'' if fmt is None else f' against the limits of {fmt.name}'}"
    return picture(parts, width, foot + 40, label)


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
    parts = [_box(f"ground {zone.sort}", x, top, wide, foot - top)]
    if zone.left > span[0]:
        parts.append(_line("edge", (x, top - 4), (x, foot)))
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
