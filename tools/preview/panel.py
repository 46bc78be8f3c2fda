"""Panels with their data: asked, transformed, drawn by their kind."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plotly.io import to_json

from tools.preview import cells, markup, timeseries
from tools.preview.fields import NO_VALUE, looks
from tools.preview.frames import NUMBER, TIME, Frame, frames
from tools.preview.plots import Line
from tools.preview.questions import questions_of
from tools.preview.transformations import transformed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tools.preview.events import Annotation
    from tools.preview.intervals import TimeSpan
    from tools.preview.prometheus import Prometheus
    from tools.preview.variables import Choices

PLOT = '<div class="plot"></div>'
"""Place in the panel where Plotly draws."""

CALCULATION_NAMES = {
    "lastNotNull": "Last *",
    "min": "Min",
    "max": "Max",
    "mean": "Mean",
    "sum": "Total",
}
"""Headings that Grafana gives the columns."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Setting that all panels of a sheet share.

    Attributes:
        prometheus: Who is asked.
        choices: What the variables are set to.
        span: Time that is drawn.
        events: The annotations that are switched on.
    """

    prometheus: Prometheus
    choices: Choices
    span: TimeSpan
    events: Sequence[Annotation]


@dataclass(frozen=True, slots=True)
class Shown:
    """A panel with its data.

    Attributes:
        panel: As the dashboard has it.
        frames: After the transformations; not all empty.
        steps: Time between two points by the letter of the query. Unit: ms.
        setting: What all panels of the sheet share.
        width: Of its inside. Unit: pixels.
        height: Of its inside. Unit: pixels.
    """

    panel: Mapping[str, Any]
    frames: Sequence[Frame]
    steps: Mapping[str, float]
    setting: Setting
    width: float
    height: float

    @property
    def options(self) -> Mapping[str, Any]:
        """Options that only this kind of panel has."""
        found: Mapping[str, Any] = self.panel.get("options", {})
        return found

    def lines(self) -> list[Line]:
        """Return its columns of numbers with their times and looks."""
        named = [
            (n, f) for frame in self.frames for n, f in zip(frame.names, frame.fields, strict=True)
        ]
        shown = iter(looks(self.panel["fieldConfig"], named))
        found = []
        for frame in self.frames:
            times = next(f.values for f in frame.fields if f.kind == TIME)
            for column in frame.fields:
                look = next(shown)
                if column.kind == NUMBER:
                    found.append(Line(look, times, column.values, self.steps[frame.ref_id]))
        return found

    def values(self) -> list[markup.Value]:
        """Return one value of each of its columns of numbers."""
        calculation = self.options["reduceOptions"]["calcs"][0]
        return [
            markup.Value(line.look, reduced(line.values, calculation), line.values)
            for line in self.lines()
        ]


def drawn(
    panel: Mapping[str, Any], setting: Setting, width: float, height: float
) -> tuple[str, str]:
    """Return the inside of a panel.

    Args:
        panel: As the dashboard has it.
        setting: What all panels of the sheet share.
        width: Of the inside. Unit: pixels.
        height: Of the inside. Unit: pixels.

    Returns:
        HTML, and the figure that Plotly has to put into it as JSON; empty without one.

    Raises:
        PrometheusError: If Prometheus does not answer, or a query is wrong.
        ValueError: If the panel has something that this preview does not draw.
    """
    draw = _KINDS.get(panel["type"])
    if draw is None:
        msg = f"expected a panel of the kind {', '.join(_KINDS)}, got {panel['type']!r}; add it to tools/preview/panel.py"
        raise ValueError(msg)
    asked = questions_of(panel, setting.choices, setting.span)
    alone = sum(question.model.get("format") == "table" for question in asked) == 1
    found: list[Frame] = []
    for question in asked:
        found += frames(question, question.ask(setting.prometheus), alone=alone)
    found = transformed(found, panel.get("transformations") or [])
    if not any(len(frame) for frame in found):
        return markup.nothing(panel["fieldConfig"]["defaults"].get("noValue", NO_VALUE)), ""
    steps = {question.ref_id: question.interval.step * 1e3 for question in asked}
    return draw(Shown(panel, found, steps, setting, width, height))


def _stat(shown: Shown) -> tuple[str, str]:
    return markup.stat(shown.values(), shown.options, shown.width, shown.height), ""


def _table(shown: Shown) -> tuple[str, str]:
    frame = shown.frames[0]
    named = list(zip(frame.names, frame.fields, strict=True))
    look = looks(shown.panel["fieldConfig"], named)
    return markup.table(frame, look, shown.options, shown.width), ""


def _time_series(shown: Shown) -> tuple[str, str]:
    lines = shown.lines()
    figure = timeseries.time_series(lines, shown.setting.span, shown.setting.events)
    options = shown.options["legend"]
    calculations = options.get("calcs", []) if options["displayMode"] == "table" else []
    entries = [
        markup.Entry(
            line.look.name,
            line.look.colour(reduced(line.values, "lastNotNull")),
            [line.look.text(reduced(line.values, c)) for c in calculations],
        )
        for line in lines
    ]
    headings = [CALCULATION_NAMES[c] for c in calculations]
    return PLOT + markup.legend(entries, headings), to_json(figure)


def _heatmap(shown: Shown) -> tuple[str, str]:
    return PLOT, to_json(cells.heatmap(shown.lines(), shown.options, shown.setting.span))


def _state_timeline(shown: Shown) -> tuple[str, str]:
    lines = shown.lines()
    seen = {
        line.look.text(value): line.look.colour(value)
        for line in lines
        for value in line.values
        if value is not None
    }
    merge = bool(shown.options.get("mergeValues", True))
    figure = cells.state_timeline(lines, shown.setting.span, merge=merge)
    return PLOT + markup.legend([markup.Entry(*e, []) for e in seen.items()], []), to_json(figure)


_KINDS = {
    "stat": _stat,
    "table": _table,
    "timeseries": _time_series,
    "heatmap": _heatmap,
    "state-timeline": _state_timeline,
}


def data_of(figure: str) -> str:
    """Return the figure as JSON that can stand in a script of a page."""
    return json.dumps(json.loads(figure)).replace("</", "<\\/")


def reduced(values: Sequence[Any], calculation: str) -> Any:
    """Return one value of a column, ``None`` if it has none.

    Args:
        values: Numbers or text; ``None`` where there is nothing.
        calculation: Grafana's name of the reducer.

    Raises:
        ValueError: If no dashboard here has used that calculation so far.
    """
    calculate = _CALCULATIONS.get(calculation)
    if calculate is None:
        msg = f"expected one of the calculations {', '.join(CALCULATION_NAMES)}, got {calculation!r}; add it to tools/preview/panel.py"
        raise ValueError(msg)
    there = [v for v in values if v is not None and not (isinstance(v, float) and math.isnan(v))]
    return calculate(there) if there else None


_CALCULATIONS: dict[str, Callable[[list[Any]], Any]] = {
    "lastNotNull": lambda there: there[-1],
    "min": min,
    "max": max,
    "mean": lambda there: sum(there) / len(there),
    "sum": sum,
}
