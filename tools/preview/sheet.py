"""A dashboard as one page: header, variables, row titles and panels on the grid."""

from __future__ import annotations

from datetime import datetime, timezone
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plotly.offline import get_plotlyjs

from tools.preview.events import events
from tools.preview.grid import CELL, boxes
from tools.preview.panel import Setting, data_of, drawn
from tools.preview.questions import SHEET_PIXELS, annotations_of, choices_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tools.preview.grid import GridBox
    from tools.preview.intervals import TimeSpan
    from tools.preview.prometheus import Prometheus

MARGIN = 16
HEADER = 84
"""Height of what stands above the grid. Unit: pixels."""

TITLE = 30
"""Height of the title of a panel, with what is free around its inside. Unit: pixels."""

STYLE = Path(__file__).with_name("sheet.css")

DRAW = """
for (const [id, figure] of Object.entries(figures))
  Plotly.newPlot(document.querySelector(`#${id} .plot`), figure.data,
    {...figure.layout, autosize: true}, {staticPlot: true, responsive: false});
document.body.dataset.drawn = "yes";
"""


def sheet(
    dashboard: Mapping[str, Any],
    prometheus: Prometheus,
    span: TimeSpan,
    chosen: Mapping[str, list[str]] | None = None,
    *,
    unfolded: bool = False,
) -> str:
    """Return a dashboard with the answers of Prometheus as a page of its own.

    Args:
        dashboard: As its file has it.
        prometheus: Who is asked.
        span: Time that is drawn.
        chosen: What the variables are set to, by name; all where there is nothing.
        unfolded: Whether the rows are opened that Grafana shows folded at first.

    Raises:
        PrometheusError: If Prometheus does not answer, or a query is wrong.
        ValueError: If the dashboard has something that this preview does not draw.
    """
    choices = choices_of(dashboard, prometheus, span, chosen)
    happened = [
        event
        for question in annotations_of(dashboard, choices, span)
        if question.model.get("enable")
        for event in events(question, question.ask(prometheus))
    ]
    setting = Setting(prometheus, choices, span, happened)
    figures: dict[str, str] = {}
    placed = [_box(box, setting, figures) for box in boxes(dashboard, unfolded=unfolded)]
    lowest = max(top + height for *_, (top, height) in placed)
    body = "".join(html for html, _ in placed)
    scripts = ",".join(f'"{name}":{figure}' for name, figure in figures.items())
    height = HEADER + lowest + MARGIN
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(dashboard["title"])}</title>
<style>{STYLE.read_text(encoding="utf-8")}</style></head>
<body style="width:{SHEET_PIXELS}px;height:{height:.0f}px">
{_header(dashboard, setting)}<main style="top:{HEADER}px">{body}</main>
<script>{get_plotlyjs()}</script><script>const figures = {{{scripts}}};{DRAW}</script>
</body></html>
"""


def _header(dashboard: Mapping[str, Any], setting: Setting) -> str:
    variables = "".join(
        f'<span class="variable"><b>{escape(v.label)}</b>{escape(_shown(v.name, v.kind, setting))}</span>'
        for v in setting.choices.of.values()
        if not v.hidden
    )
    start, end = (
        f"{datetime.fromtimestamp(t, timezone.utc):%Y-%m-%d %H:%M:%S}"
        for t in (setting.span.start, setting.span.end)
    )
    links = "".join(
        f'<span class="variable">{escape(link["title"])}</span>'
        for link in dashboard.get("links", [])
    )
    return f"""<header><h1>{escape(dashboard["title"])}</h1>
<p class="note">Drawn by ampwatch from the JSON of the dashboard; in Grafana it looks a little different</p>
<p class="time">{start} to {end} UTC</p><div>{variables}{links}</div></header>
"""


def _shown(name: str, kind: str, setting: Setting) -> str:
    if kind == "datasource":
        return "Prometheus"
    return "none" if kind == "adhoc" else setting.choices.in_text(f"${name}", {})


def _box(
    box: GridBox, setting: Setting, figures: dict[str, str]
) -> tuple[str, tuple[float, float]]:
    """Return a panel, and where it begins and how high it is."""
    panel = box.panel
    left, top, width, height = box.pixels(SHEET_PIXELS - 2 * MARGIN)
    place = f"left:{left + MARGIN:.0f}px;top:{top:.0f}px;width:{width:.0f}px;height:{height:.0f}px"
    title = escape(setting.choices.in_text(panel.get("title", ""), {}))
    if panel["type"] == "row":
        folded = panel.get("panels") or ()
        mark = "▸" if folded else "▾"
        count = f' <span class="folded">({len(folded)} panels)</span>' if folded else ""
        return f'<h2 style="{place}">{mark} {title}{count}</h2>', (top, height)
    identity = f"panel-{panel['id']}"
    inside, figure = drawn(panel, setting, width - 16, height - TITLE - 8)
    if figure:
        figures[identity] = data_of(figure)
    hint = '<span class="hint">i</span>' if panel.get("description") else ""
    description = escape(panel.get("description", ""))
    return (
        f'<section id="{identity}" class="{panel["type"]}" style="{place}" title="{description}">'
        f'<h3 style="height:{CELL}px">{title}{hint}</h3><div class="inside">{inside}</div></section>'
    ), (top, height)
