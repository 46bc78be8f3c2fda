"""One panel with its data: asked, transformed, drawn by its kind."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plotly.io import to_json

from dashboards.preview import markup, plots
from dashboards.preview.fields import NO_VALUE, looks
from dashboards.preview.frames import NUMBER, Field, Frame, frames
from dashboards.preview.questions import questions_of
from dashboards.preview.reducing import NAMES, reduced
from dashboards.preview.transformations import transformed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dashboards.preview.events import Event
    from dashboards.preview.fields import Look
    from dashboards.preview.intervals import Span
    from dashboards.preview.prometheus import Prometheus
    from dashboards.preview.variables import Choices


@dataclass(frozen=True, slots=True)
class Setting:
    """What all panels of a sheet share.

    Attributes:
        prometheus: Who is asked.
        choices: What the variables are set to.
        span: What is looked at.
        events: The annotations that are switched on.
    """

    prometheus: Prometheus
    choices: Choices
    span: Span
    events: Sequence[Event]


@dataclass(slots=True)
class Column:
    """A column of numbers with what belongs to it."""

    times: Field | None
    values: Field
    look: Look
    step: float
    """Time between two points. Unit: ms."""


def drawn(
    panel: Mapping[str, Any], setting: Setting, width: float, height: float
) -> tuple[str, str]:
    """Return the inside of a panel.

    Args:
        panel: As the dashboard has it.
        setting: What all panels of the sheet share.
        width: Of the inside. Unit: pixels.
        height: Likewise.

    Returns:
        HTML, and the figure that Plotly has to put into it as JSON; empty without one.

    Raises:
        PrometheusError: If Prometheus does not answer, or a query is wrong.
        ValueError: If the panel has something that this preview does not draw.
    """
    kind = panel["type"]
    if kind not in _KINDS:
        msg = f"expected a panel of the kind {', '.join(_KINDS)}, got {kind!r}; add it to dashboards/preview/panel.py"
        raise ValueError(msg)
    asked = questions_of(panel, setting.choices, setting.span)
    tables = sum(q.model.get("format") == "table" for q in asked)
    found: list[Frame] = []
    for question in asked:
        answer = question.ask(setting.prometheus)
        found += frames(question, answer, alone=tables == 1)
    found = transformed(found, panel.get("transformations") or [])
    config = panel.get("fieldConfig", {})
    if not any(len(frame) for frame in found):
        return markup.nothing(config.get("defaults", {}).get("noValue", NO_VALUE)), ""
    steps = {q.ref_id: q.interval.step * 1e3 for q in asked}
    return _KINDS[kind](panel, found, steps, setting, (width, height))


def _columns(
    panel: Mapping[str, Any], found: Sequence[Frame], steps: Mapping[str, float], now: float
) -> list[Column]:
    named = [(f.ref_id, n, c) for f in found for n, c in zip(f.names, f.fields, strict=True)]
    shown = iter(looks(panel.get("fieldConfig", {}), named, now))
    columns = []
    for frame in found:
        times = next((f for f in frame.fields if f.kind == "time"), None)
        for column in frame.fields:
            look = next(shown)
            if column.kind == NUMBER:
                columns.append(Column(times, column, look, steps.get(frame.ref_id, 0.0)))
    return columns


def _values(columns: Sequence[Column], options: Mapping[str, Any]) -> list[markup.Value]:
    calculation = (options.get("reduceOptions", {}).get("calcs") or ["lastNotNull"])[0]
    found = []
    for column in columns:
        if options.get("reduceOptions", {}).get("values"):
            found += [markup.Value(column.look, v, ()) for v in column.values.values]
        else:
            value = reduced(column.values.values, calculation)
            found.append(markup.Value(column.look, value, column.values.values))
    return found


def _stat(
    panel: Mapping[str, Any],
    found: Sequence[Frame],
    steps: Mapping[str, float],
    setting: Setting,
    size: tuple[float, float],
) -> tuple[str, str]:
    values = _values(_columns(panel, found, steps, setting.span.end), panel["options"])
    return markup.stat(values, panel["options"], *size), ""


def _bar_gauge(
    panel: Mapping[str, Any],
    found: Sequence[Frame],
    steps: Mapping[str, float],
    setting: Setting,
    _: tuple[float, float],
) -> tuple[str, str]:
    values = _values(_columns(panel, found, steps, setting.span.end), panel["options"])
    return markup.bar_gauge(values), ""


def _table(
    panel: Mapping[str, Any],
    found: Sequence[Frame],
    _: Mapping[str, float],
    setting: Setting,
    size: tuple[float, float],
) -> tuple[str, str]:
    frame = found[0]
    named = [(frame.ref_id, n, c) for n, c in zip(frame.names, frame.fields, strict=True)]
    shown = looks(panel.get("fieldConfig", {}), named, setting.span.end)
    return markup.table(frame, shown, panel.get("options", {}), size[0]), ""


def _lines(
    panel: Mapping[str, Any], found: Sequence[Frame], steps: Mapping[str, float], setting: Setting
) -> list[plots.Line]:
    return [
        plots.Line(c.look, c.times.values, c.values.values, c.step)
        for c in _columns(panel, found, steps, setting.span.end)
        if c.times is not None
    ]


def _time_series(
    panel: Mapping[str, Any],
    found: Sequence[Frame],
    steps: Mapping[str, float],
    setting: Setting,
    _: tuple[float, float],
) -> tuple[str, str]:
    lines = _lines(panel, found, steps, setting)
    figure = plots.time_series(lines, setting.span, setting.events)
    options = panel["options"].get("legend", {})
    if not options.get("showLegend", True):
        return '<div class="plot"></div>', to_json(figure)
    calculations = options.get("calcs", []) if options.get("displayMode") == "table" else []
    entries = [
        (
            line.look,
            line.look.colour(reduced(line.values, "lastNotNull")),
            [line.look.text(reduced(line.values, c)) for c in calculations],
        )
        for line in lines
        if not line.look.custom.get("hideFrom", {}).get("legend")
    ]
    legend = markup.legend(entries, [NAMES[c] for c in calculations])
    return f'<div class="plot"></div>{legend}', to_json(figure)


def _heatmap(
    panel: Mapping[str, Any],
    found: Sequence[Frame],
    steps: Mapping[str, float],
    setting: Setting,
    _: tuple[float, float],
) -> tuple[str, str]:
    lines = _lines(panel, found, steps, setting)
    figure = plots.heatmap(lines, panel["options"], setting.span)
    return '<div class="plot"></div>', to_json(figure)


def _state_timeline(
    panel: Mapping[str, Any],
    found: Sequence[Frame],
    steps: Mapping[str, float],
    setting: Setting,
    _: tuple[float, float],
) -> tuple[str, str]:
    lines = _lines(panel, found, steps, setting)
    merge = bool(panel["options"].get("mergeValues", True))
    seen: dict[str, tuple[Look, str, Sequence[str]]] = {}
    for line in lines:
        for value in line.values:
            if value is not None:
                text = line.look.text(value)
                seen.setdefault(text, (_called(line.look, text), line.look.colour(value), ()))
    legend = markup.legend(list(seen.values()), [])
    figure = plots.state_timeline(lines, setting.span, merge=merge)
    return f'<div class="plot"></div>{legend}', to_json(figure)


def _called(look: Look, name: str) -> Look:
    return type(look)(name, look.options, look.custom, look.place, look.now)


_KINDS = {
    "stat": _stat,
    "bargauge": _bar_gauge,
    "table": _table,
    "timeseries": _time_series,
    "heatmap": _heatmap,
    "state-timeline": _state_timeline,
}


def data_of(figure: str) -> Any:
    """Return the figure as JSON that can stand in a script of a page."""
    return json.dumps(json.loads(figure)).replace("</", "<\\/")
