"""The picture of an incident: loss scale, skipped steps and loss around its beginning."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.report.accounts import figure
from ampwatch.report.markup import Markup, element
from ampwatch.report.svg import (
    LEFT,
    RIGHT,
    frame,
    linear,
    picture,
    points_of,
    raised,
    short,
    text,
    ticks,
)
from ampwatch.wire.records import SkipClass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.wire.records import Finding, StepRecord

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


def course(steps: Sequence[StepRecord], width: int, since: int = -1) -> Markup | None:
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
            element("line", class_="since", x1=x, x2=x, y1=16.0, y2=float(bottom)),
            text(f"first seen: step {since}", x, 11, anchor=side, kind="since-name"),
        ]
    parts += [text(str(s), across(s), bottom + 15) for s in ticks(first, last, 4)]
    parts.append(text("step", width - RIGHT, bottom + 31, anchor="end", kind="axis"))
    said = f"Loss scale, skipped steps and loss from step {first} to {last}"
    return picture(parts, width, bottom + 38, said)


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
    parts += [text(f"2{raised(e)}", LEFT - 6, up(e) + 4, anchor="end") for e in ticks(low, high, 4)]
    points: list[tuple[float, float]] = []
    for s, e in zip(scaled, exponents, strict=True):
        if points:  # a scale holds until it changes
            points.append((across(s.step), points[-1][1]))
        points.append((across(s.step), up(e)))
    parts.append(element("polyline", class_="scale", points=points_of(points)))
    for s in steps:
        if s.skip_class is not SkipClass.NONE:
            x = across(s.step)
            tick = element(
                "line",
                element("title", f"step {s.step}: skipped, {s.skip_class.label}"),
                class_=f"skip {s.skip_class.label}",
                x1=x,
                x2=x,
                y1=float(top + SCALE_HEIGHT - 11),
                y2=float(top + SCALE_HEIGHT - 1),
            )
            parts.append(tick)
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
            y = float(top + 7)
            parts.append(element("circle", name, class_="nonfinite", cx=x, cy=y, r=2.5))
    return parts


def _is_drawn(loss: float) -> bool:
    """Return whether a loss has a place on an axis: the difference of two must be a number."""
    return abs(loss) <= LARGEST
