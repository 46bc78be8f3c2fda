"""Panels that Plotly draws: time series, heatmap, state timeline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from dashboards.preview import units
from dashboards.preview.axes import Axis, axis_of
from dashboards.preview.colours import colour, see_through

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dashboards.preview.events import Event
    from dashboards.preview.fields import Look
    from dashboards.preview.intervals import Span

GRID = "rgba(204,204,220,0.10)"
TEXT = "#9a9aa8"


@dataclass(slots=True)
class Line:
    """One series of a panel.

    Attributes:
        look: How it is shown.
        times: Unit: ms since 1970.
        values: ``None`` where there is a gap.
        step: Time between two points. Unit: ms.
    """

    look: Look
    times: list[float]
    values: list[Any]
    step: float


def figure(span: Span, **layout: Any) -> Any:
    """Return an empty figure with a time axis."""
    return go.Figure(
        layout={
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": "Inter, Helvetica, Arial, sans-serif", "size": 11, "color": TEXT},
            "margin": {"l": 8, "r": 12, "t": 6, "b": 4},
            "showlegend": False,
            "xaxis": {
                "type": "date",
                "range": [span.start * 1e3, span.end * 1e3],
                "gridcolor": GRID,
                "nticks": 8,
                "tickformat": "%H:%M" if span.seconds > 1200 else "%H:%M:%S",
                "automargin": True,
                "zeroline": False,
            },
            **layout,
        }
    )


def time_series(lines: Sequence[Line], span: Span, events: Sequence[Event]) -> Any:
    """Return lines, bars or points over time, with the events behind them."""
    axes: dict[tuple[str, str], Axis] = {}
    for line in lines:
        placement = line.look.custom.get("axisPlacement", "auto")
        key = (line.look.options.get("unit", ""), placement)
        axes.setdefault(key, axis_of(line.look)).take(line.look, line.values)
    drawn = figure(span, barmode="stack", bargap=0)
    names = {line.look.name: line for line in lines}
    for number, ((unit, placement), axis) in enumerate(axes.items()):
        _stack(axis, [n for n in lines if _key(n) == (unit, placement)])
        drawn.update_layout(
            {f"yaxis{number + 1 if number else ''}": axis.layout(number, placement)}
        )
    for line in lines:
        number = list(axes).index(_key(line))
        _draw(drawn, line, f"y{number + 1 if number else ''}", names, axes[_key(line)])
    _limits(drawn, lines, next(iter(axes.values()), None))
    for event in events:
        _mark(drawn, event)
    return drawn


def _key(line: Line) -> tuple[str, str]:
    return (line.look.options.get("unit", ""), line.look.custom.get("axisPlacement", "auto"))


def _stacked(look: Look) -> bool:
    return bool(look.custom.get("stacking", {}).get("mode", "none") != "none")


def _stack(axis: Axis, lines: Sequence[Line]) -> None:
    """Let the axis reach to the sums of stacked lines."""
    sums: dict[float, float] = {}
    for line in lines:
        if _stacked(line.look):
            for at, value in zip(line.times, line.values, strict=True):
                if value is not None and math.isfinite(value):
                    sums[at] = sums.get(at, 0.0) + value
    axis.reach(sums.values())


def _draw(drawn: Any, line: Line, axis: str, names: Mapping[str, Line], scale: Axis) -> None:
    look, custom = line.look, line.look.custom
    css = look.colour(_last(line.values))
    opacity = custom.get("fillOpacity", 0) / 100
    values = [scale.drawable(v) for v in line.values]
    if custom.get("drawStyle") == "bars":
        drawn.add_bar(
            x=line.times,
            y=values,
            yaxis=axis,
            width=line.step * 0.9,
            marker={"color": see_through(css, max(opacity, 0.2)), "line": {"width": 0}},
        )
        return
    below = custom.get("fillBelowTo", "")
    if below in names:
        _band(drawn, line, names[below], axis, see_through(css, opacity or 0.35), scale)
    dashed = custom.get("lineStyle", {}).get("fill") == "dash"
    stacked = _stacked(look)
    drawn.add_scatter(
        x=line.times,
        y=[v or 0.0 for v in values] if stacked else values,
        yaxis=axis,
        mode="lines",
        line={
            "color": css,
            "width": max(custom.get("lineWidth", 1), 1) + 0.3,
            "dash": "8px,6px" if dashed else "solid",
        },
        fill=None if below or not opacity else "tonexty" if stacked else "tozeroy",
        fillcolor=see_through(css, opacity),
        stackgroup=axis if stacked else None,
        connectgaps=bool(custom.get("spanNulls")),
    )
    lonely = _lonely(values)
    if lonely:
        drawn.add_scatter(
            x=[line.times[i] for i in lonely],
            y=[values[i] for i in lonely],
            yaxis=axis,
            mode="markers",
            marker={"size": 4, "color": css},
        )


def _last(values: Sequence[Any]) -> Any:
    return next((v for v in reversed(values) if v is not None), None)


def _lonely(values: Sequence[Any]) -> list[int]:
    """Return the points without a neighbour, of which a line would show nothing."""
    there = [False, *(v is not None for v in values), False]
    return [i for i in range(len(values)) if there[i + 1] and not there[i] and not there[i + 2]]


def _band(drawn: Any, upper: Line, lower: Line, axis: str, css: str, scale: Axis) -> None:
    below = dict(zip(lower.times, lower.values, strict=True))
    both = [
        (at, scale.drawable(value), scale.drawable(below[at]))
        for at, value in zip(upper.times, upper.values, strict=True)
        if value is not None and below.get(at) is not None
    ]
    both = [row for row in both if None not in row]
    drawn.add_scatter(
        x=[at for at, _, _ in both] + [at for at, _, _ in reversed(both)],
        y=[high for _, high, _ in both] + [low for _, _, low in reversed(both)],
        yaxis=axis,
        mode="none",
        fill="toself",
        fillcolor=css,
    )


def _limits(drawn: Any, lines: Sequence[Line], axis: Axis | None) -> None:
    """Draw the thresholds as the panel wants them."""
    if not lines or axis is None:
        return
    look = lines[0].look
    mode = look.custom.get("thresholdsStyle", {}).get("mode", "off")
    steps = look.thresholds()
    low, high = axis.span()
    for (css, bound), (_, above) in zip(steps, [*steps[1:], ("", math.inf)], strict=True):
        if "area" in mode and css not in ("transparent", "text"):
            bottom, top = max(bound, low), min(above, high)
            if bottom < top:
                drawn.add_hrect(
                    y0=axis.place(bottom),
                    y1=axis.place(top),
                    fillcolor=see_through(colour(css), 0.12),
                    line_width=0,
                    layer="below",
                )


def _mark(drawn: Any, event: Event) -> None:
    css = colour(event.colour)
    line = {"color": css, "width": 1, "dash": "dot"}
    drawn.add_vline(x=event.start * 1e3, line=line, layer="below")
    if event.end > event.start:
        drawn.add_vline(x=event.end * 1e3, line=line, layer="below")
        drawn.add_vrect(
            x0=event.start * 1e3,
            x1=event.end * 1e3,
            fillcolor=see_through(css, 0.05),
            line_width=0,
            layer="below",
        )


def heatmap(buckets: Sequence[Line], options: Mapping[str, Any], span: Span) -> Any:
    """Return the buckets of a histogram over time, empty ones left out."""
    times = sorted({at for line in buckets for at in line.times})
    least = options.get("filterValues", {}).get("le")
    rows = []
    for line in buckets:
        at = dict(zip(line.times, line.values, strict=True))
        row = [at.get(time) for time in times]
        rows.append([None if v is None or (least is not None and v <= least) else v for v in row])
    exponent = options.get("color", {}).get("exponent", 0.5)
    exponential = options.get("color", {}).get("scale") == "exponential"
    shown = [[None if v is None else v**exponent if exponential else v for v in r] for r in rows]
    unit = options.get("yAxis", {}).get("unit", "")
    names = [_bound(line.look.name, unit) for line in buckets]
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
    """Return the upper bound of a bucket; powers of two as such, which is what they are here."""
    try:
        bound = float(name.replace("+Inf", "inf"))
    except ValueError:
        return name
    return units.written(bound, unit) if math.isfinite(bound) else "+Inf"


def state_timeline(lines: Sequence[Line], span: Span, *, merge: bool) -> Any:
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
