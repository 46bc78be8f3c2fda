"""A committed dashboard, for tests that break one of its rules or conventions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from tests.dashboards import documents

Change = Callable[[dict[str, Any]], object]

CHOSEN = 'job=~"$job", instance=~"$instance", run=~"$run", rank=~"$rank"'
PROPER = documents.load(documents.ROOT / "dashboards" / "ampwatch-run.json")
ROW, ELEMENTS = 300, 305
"""Ids of panels: the question above, and a course with a link and overrides by name."""


def changed(change: Change) -> dict[str, Any]:
    """Return the dashboard after ``change``."""
    dashboard = copy.deepcopy(PROPER)
    change(dashboard)
    return dashboard


def panel(dashboard: dict[str, Any], number: int = ELEMENTS) -> dict[str, Any]:
    return next(each for each in documents.panels(dashboard) if each["id"] == number)


def defaults(dashboard: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = panel(dashboard)["fieldConfig"]["defaults"]
    return found


def target(dashboard: dict[str, Any], number: int = ELEMENTS) -> dict[str, Any]:
    found: dict[str, Any] = panel(dashboard, number)["targets"][0]
    return found


def override(dashboard: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = panel(dashboard)["fieldConfig"]["overrides"][0]
    return found


def listed(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dashboard["templating"]["list"]
    return found
