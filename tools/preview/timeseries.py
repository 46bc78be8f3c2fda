"""Lines and bars over time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tools.preview.axes import axis_of
from tools.preview.colours import colour, see_through
from tools.preview.plots import figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tools.preview.axes import Axis
    from tools.preview.events import Annotation
    from tools.preview.fields import FieldLook
    from tools.preview.intervals import TimeSpan
    from tools.preview.plots import Line


def time_series(lines: Sequence[Line], span: TimeSpan, events: Sequence[Annotation]) -> Any:
    """Return lines or bars over time, with an axis per unit and the events behind them."""
    stacked = any(_stacked(line.look) for line in lines)
    drawn = figure(span, barmode="stack" if stacked else "overlay", bargap=0)
    names = {line.look.name: line for line in lines}
    units_of = list(dict.fromkeys(line.look.options.get("unit", "") for line in lines))
    for number, unit in enumerate(units_of):
        of_unit = [line for line in lines if line.look.options.get("unit", "") == unit]
        axis = axis_of(of_unit[0].look)
        for line in of_unit:
            axis.reach(line.values)
        _stack(axis, of_unit)
        suffix = f"{number + 1}" if number else ""
        drawn.update_layout({f"yaxis{suffix}": axis.layout(number)})
        for line in of_unit:
            _draw(drawn, line, f"y{suffix}", names, axis)
        if not number:
            _limits(drawn, of_unit[0].look, axis)
    for event in events:
        _mark(drawn, event)
    return drawn


def _stacked(look: FieldLook) -> bool:
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


def _limits(drawn: Any, look: FieldLook, axis: Axis) -> None:
    """Colour the areas beyond the thresholds, if the panel wants that."""
    if look.custom.get("thresholdsStyle", {}).get("mode") != "area":
        return
    steps = look.thresholds()
    low, high = axis.span()
    for (css, bound), (_, above) in zip(steps, [*steps[1:], ("", math.inf)], strict=True):
        bottom = max(bound, low)
        top = min(above, high)
        if bottom < top and css not in ("transparent", "text"):
            drawn.add_hrect(
                y0=axis.place(bottom),
                y1=axis.place(top),
                fillcolor=see_through(colour(css), 0.12),
                line_width=0,
                layer="below",
            )


def _mark(drawn: Any, event: Annotation) -> None:
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
