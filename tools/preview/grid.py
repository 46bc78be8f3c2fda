"""Places of panels in Grafana's grid of 24 columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

COLUMNS = 24
CELL = 30
"""Height of one row of the grid. Unit: pixels."""

GAP = 8
"""Between two panels. Unit: pixels."""


@dataclass(frozen=True, slots=True)
class GridBox:
    """A panel and where it stands, in cells of the grid.

    Attributes:
        panel: As the dashboard has it.
        x: Columns from the left.
        y: Rows from the top.
        width: In columns.
        height: In rows.
    """

    panel: Mapping[str, Any]
    x: int
    y: int
    width: int
    height: int

    def pixels(self, sheet: int) -> tuple[float, float, float, float]:
        """Return left, top, width and height on a sheet so many pixels wide."""
        column = (sheet + GAP) / COLUMNS
        row = CELL + GAP
        return (self.x * column, self.y * row, self.width * column - GAP, self.height * row - GAP)


def boxes(dashboard: Mapping[str, Any], *, unfolded: bool) -> list[GridBox]:
    """Return every panel and row title that can be seen, from the top.

    Args:
        dashboard: As its file has it.
        unfolded: Whether every collapsed row is opened: its panels stand under it, and what is
            below moves down by as much.
    """
    placed: list[GridBox] = []
    down = 0
    for panel in sorted(dashboard["panels"], key=lambda p: (p["gridPos"]["y"], p["gridPos"]["x"])):
        box = _box(panel, down)
        placed.append(box)
        inside = panel.get("panels") or []
        if unfolded and inside:
            top = min(p["gridPos"]["y"] for p in inside)
            opened = [_box(p, box.y + box.height - top) for p in inside]
            placed += opened
            down += max(b.y + b.height for b in opened) - (box.y + box.height)
    return placed


def _box(panel: Mapping[str, Any], down: int) -> GridBox:
    at = panel["gridPos"]
    return GridBox(panel, at["x"], at["y"] + down, at["w"], at["h"])
