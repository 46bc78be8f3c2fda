"""A whole dashboard: rows of panels, their places on the grid, and the JSON that Grafana reads."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from ampwatch import __version__
from ampwatch.operate.grafana.work import as_text
from dashboards.source.events import ALERTS, events
from dashboards.source.links import TAG, others
from dashboards.source.variables import variables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dashboards.source.panel import Panel

COLUMNS = 24

SCHEMA = 39
"""Schema version of Grafana 10.4, the oldest that is supported; newer ones bring it up to theirs."""

_NOISE = frozenset(
    {"auto", "auto_min", "auto_count", "allowCustomValue", "skipUrlSync", "repeatDirection"}
)
"""Keys that the SDK writes although nobody has set them."""

_LINK_NOISE = frozenset(
    {"type", "icon", "tooltip", "tags", "asDropdown", "includeVars", "keepTime", "placement"}
)
"""Keys of links between dashboards, which the SDK also writes into links of values."""


@dataclass(frozen=True)
class Row:
    """Panels that answer one question.

    Args:
        id: Number that never changes: 100, 200 ...; the panels of the row are those above it.
        question: Its title.
        panels: From left to right, a new line begins where the next one does not fit.
        collapsed: Whether it has to be opened first, as where most readers have no such data.
    """

    id: int
    question: str
    panels: tuple[Panel, ...]
    collapsed: bool = False


@dataclass(frozen=True)
class Page:
    """Dashboard as it is written to a file.

    Args:
        uid: Its address, which never changes, and the name of its file.
        title: As Grafana lists it.
        description: What it is for.
        rows: Its questions, the most urgent first.
        drawn: Annotation that is drawn over the time series from the start, by its name.
        choices: Variables that only this dashboard has, from ``variables.choice``.
    """

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...] = field(default=())
    drawn: str = ALERTS
    choices: tuple[model.VariableModel, ...] = ()

    def json(self) -> str:
        """Return the text of the file, as `ampwatch grafana export` writes it."""
        return as_text(self.plain())

    def plain(self) -> dict[str, Any]:
        """Return what the file says, as plain lists and dictionaries."""
        built = model.Dashboard(
            uid=self.uid,
            title=self.title,
            description=self.description,
            tags=[TAG, f"{TAG}:{__version__}"],
            timezone="browser",
            editable=False,
            graph_tooltip=model.DashboardCursorSync.CROSSHAIR,
            time=model.DashboardDashboardTime(from_val="now-1h", to="now"),
            refresh="30s",
            schema_version=SCHEMA,
            panels=list(_placed(self.rows)),
            templating=model.DashboardDashboardTemplating(list_val=variables(*self.choices)),
            annotations=model.AnnotationContainer(list_val=events(self.drawn)),
            links=[others()],
        )
        plain: dict[str, Any] = json.loads(JSONEncoder().encode(built))
        cleaned: dict[str, Any] = _without_noise(plain)
        return cleaned


def _placed(rows: tuple[Row, ...]) -> Iterator[model.Panel | model.RowPanel]:
    """Yield rows and panels with their places; the panels of a collapsed row lie inside it."""
    y = 0
    for row in rows:
        head = model.RowPanel(
            id_val=row.id,
            title=row.question,
            collapsed=row.collapsed,
            grid_pos=model.GridPos(h=1, w=COLUMNS, x=0, y=y),
            panels=[],
        )
        panels, end = _flow(row.panels, y + 1)
        if row.collapsed:
            head.panels = panels
            yield head
            y += 1
        else:
            yield head
            yield from panels
            y = end


def _flow(panels: tuple[Panel, ...], y: int) -> tuple[list[model.Panel], int]:
    """Lay panels out line by line from ``y`` on; return them, and where the next line begins."""
    placed, x, tallest = [], 0, 0
    for panel in panels:
        if x + panel.width > COLUMNS:
            x, y, tallest = 0, y + tallest, 0
        built = panel.build()
        built.grid_pos = model.GridPos(h=panel.height, w=panel.width, x=x, y=y)
        placed.append(built)
        x += panel.width
        tallest = max(tallest, panel.height)
    return placed, y + tallest


def _without_noise(value: Any, key: str = "") -> Any:
    """Leave out what the SDK writes by itself and Grafana 10.4 does not know or need.

    It also puts every link, data link and annotation into the menu of the controls, where
    newer Grafanas hide them.
    """
    if isinstance(value, list):
        return [_without_noise(item, key) for item in value]
    if not isinstance(value, dict):
        return value
    gone = _NOISE | {"placement"}
    if key == "links" and value.get("url"):
        gone |= _LINK_NOISE
    if "properties" in value and "matcher" in value:
        return value | {"properties": [_property(item) for item in value["properties"]]}
    return {
        name: _without_noise(item, name)
        for name, item in value.items()
        if name not in gone and not (name == "builtIn" and not item)
    }


def _property(item: dict[str, Any]) -> dict[str, Any]:
    """Clean one property of an override: its links are named by its id."""
    return {"id": item["id"], "value": _without_noise(item.get("value"), item["id"])}
