"""The committed dashboards, and what is in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "dashboards").glob("*.json"))
RULE_FILES = sorted((ROOT / "dashboards" / "alerts").glob("*.rules.yml"))


def load(file: Path) -> dict[str, Any]:
    """Return the dashboard in ``file``."""
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every panel, rows and what is folded up in them included."""
    for panel in dashboard.get("panels", ()):
        yield panel
        yield from panel.get("panels") or ()


def drawn(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the panels that show something: all but rows."""
    return [panel for panel in panels(dashboard) if panel["type"] != "row"]


def variables(dashboard: dict[str, Any], kind: str = "") -> list[dict[str, Any]]:
    """Return the variables, or those of one type."""
    listed = dashboard.get("templating", {}).get("list", ())
    return [variable for variable in listed if kind in {"", variable["type"]}]


def question(variable: dict[str, Any]) -> str:
    """Return what a query variable asks."""
    asked = variable.get("query", "")
    return str(asked.get("query", "") if isinstance(asked, dict) else asked)


class Expression(NamedTuple):
    """One expression and where it stands."""

    where: str
    text: str
    legend: str = ""


def expressions(dashboard: dict[str, Any]) -> Iterator[Expression]:
    """Yield every expression of a panel or an annotation."""
    title = dashboard["title"]
    for panel in drawn(dashboard):
        for target in panel.get("targets") or ():
            where = f"{title}: {panel['title']}: {target.get('refId', '?')}"
            yield Expression(where, target.get("expr", ""), target.get("legendFormat", ""))
    for annotation in dashboard.get("annotations", {}).get("list", ()):
        if annotation.get("expr"):
            where = f"{title}: annotation {annotation['name']}"
            yield Expression(where, annotation["expr"], annotation.get("textFormat", ""))
