"""Cells over time: the buckets of a heatmap, the bands of a state timeline."""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tools.preview import units
from tools.preview.colours import see_through
from tools.preview.plots import GRID, figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tools.preview.intervals import TimeSpan
    from tools.preview.plots import Line


def heatmap(buckets: Sequence[Line], options: Mapping[str, Any], span: TimeSpan) -> Any:
    """Return the buckets of a histogram over time, empty ones left out."""
    times = sorted({at for line in buckets for at in line.times})
    least, exponent = options["filterValues"]["le"], options["color"]["exponent"]
    shown = []
    for line in buckets:
        at = dict(zip(line.times, line.values, strict=True))
        row = [at.get(time) for time in times]
        shown.append([v**exponent if v is not None and v > least else None for v in row])
    names = [_bound(line.look.name, options["yAxis"]["unit"]) for line in buckets]
    drawn = figure(span)
    drawn.add_heatmap(
        x=times,
        y=list(range(len(names))),
        z=shown,
        xgap=1,
        ygap=1,
        colorscale=[[0, "#3b1d0a"], [0.35, "#a63603"], [0.7, "#f16913"], [1, "#fff5eb"]],
        colorbar={"thickness": 10, "showticklabels": False, "outlinewidth": 0, "ypad": 0},
    )
    every = max(1, len(names) // 12)
    drawn.update_layout(
        yaxis={
            "tickvals": list(range(0, len(names), every)),
            "ticktext": names[::every],
            "automargin": True,
            "gridcolor": GRID,
            "zeroline": False,
        }
    )
    return drawn


def _bound(name: str, unit: str) -> str:
    """Return the upper bound of a bucket as its axis has it."""
    bound = float(name.replace("+Inf", "inf"))
    return units.written(bound, unit) if math.isfinite(bound) else "+Inf"


def state_timeline(lines: Sequence[Line], span: TimeSpan, *, merge: bool) -> Any:
    """Return a band per series, in which equal neighbours are one."""
    drawn = figure(span, barmode="overlay", bargap=0.15)
    for row, line in enumerate(lines):
        for start, end, value in _bands(line, merge=merge):
            css = line.look.colour(value)
            text = line.look.text(value)
            fits = (end - start) / (span.seconds * 1e3) > 0.012 * len(text)
            drawn.add_bar(
                orientation="h",
                y=[row],
                base=[start],
                x=[end - start],
                marker={"color": see_through(css, 0.75), "line": {"width": 0}},
                text=[text if fits else ""],
                textposition="inside",
                insidetextanchor="start",
                insidetextfont={"color": "#ffffff", "size": 11},
                constraintext="none",
            )
    drawn.update_layout(
        yaxis={
            "tickvals": list(range(len(lines))),
            "ticktext": [line.look.name for line in lines],
            "autorange": "reversed",
            "automargin": True,
            "showgrid": False,
            "zeroline": False,
        }
    )
    return drawn


def _bands(line: Line, *, merge: bool) -> list[tuple[float, float, Any]]:
    points = [(at, v) for at, v in zip(line.times, line.values, strict=True)]
    if not merge:
        return [(at, at + line.step, v) for at, v in points if v is not None]
    found = []
    for value, group in groupby(points, key=lambda point: point[1]):
        here = list(group)
        if value is not None:
            found.append((here[0][0], here[-1][0] + line.step, value))
    return found
