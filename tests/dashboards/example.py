"""A dashboard that keeps to every rule and convention, for tests that break one of them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import ampwatch

if TYPE_CHECKING:
    from collections.abc import Callable

    Change = Callable[[dict[str, Any]], object]

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
CHOSEN = 'job=~"$job", instance=~"$instance", run=~"$run", rank=~"$rank"'
PROPER: dict[str, Any] = {
    "uid": "ampwatch-run",
    "title": "ampwatch / Run",
    "description": "Why steps are skipped.",
    "tags": ["ampwatch", f"ampwatch:{ampwatch.__version__}"],
    "schemaVersion": 39,
    "editable": False,
    "graphTooltip": 1,
    "timezone": "browser",
    "refresh": "30s",
    "time": {"from": "now-1h", "to": "now"},
    "links": [{"type": "dashboards", "tags": ["ampwatch"], "includeVars": True, "keepTime": True}],
    "templating": {
        "list": [
            {
                "name": "datasource",
                "label": "Data source",
                "type": "datasource",
                "query": "prometheus",
            },
            *(
                {
                    "name": name,
                    "label": name.title(),
                    "type": "query",
                    "datasource": SOURCE,
                    "query": f"label_values(up, {name})",
                    "includeAll": True,
                    "multi": True,
                    "allValue": ".+",
                    "refresh": 2,
                }
                for name in ("job", "instance", "run", "rank")
            ),
            {"name": "Filters", "type": "adhoc", "datasource": SOURCE},
        ]
    },
    "panels": [
        {
            "id": 1,
            "type": "row",
            "title": "Is it healthy?",
            "gridPos": {"x": 0, "y": 0, "w": 24, "h": 1},
        },
        {
            "id": 2,
            "type": "timeseries",
            "title": "Loss scale",
            "description": "The loss scale.\n\nMetric: `ampwatch_loss_scale`",
            "datasource": SOURCE,
            "gridPos": {"x": 0, "y": 1, "w": 12, "h": 8},
            "targets": [
                {
                    "refId": "A",
                    "datasource": SOURCE,
                    "expr": f"ampwatch_loss_scale{{{CHOSEN}}}",
                    "legendFormat": "{{run}}",
                }
            ],
            "fieldConfig": {
                "defaults": {
                    "unit": "none",
                    "min": 0,
                    "noValue": "No loss scale: no GradScaler",
                    "links": [
                        {"url": "/d/ampwatch-run/x?${__url_time_range}&${datasource:queryparam}"}
                    ],
                    "thresholds": {"steps": [{"value": None}, {"value": 1}, {"value": 2}]},
                },
                "overrides": [
                    {
                        "matcher": {"id": "byName", "options": "{{run}}"},
                        "properties": [{"id": "unit", "value": "short"}],
                    }
                ],
            },
            "options": {"legend": {"placement": "bottom"}},
        },
        {
            "id": 3,
            "type": "heatmap",
            "title": "Gradients",
            "description": "Gradients.\n\nMetric: `ampwatch_gradient_magnitude`",
            "datasource": SOURCE,
            "gridPos": {"x": 12, "y": 1, "w": 12, "h": 8},
            "targets": [
                {
                    "refId": "A",
                    "datasource": SOURCE,
                    "expr": f"ampwatch_gradient_magnitude_bucket{{{CHOSEN}}}",
                    "legendFormat": "{{le}}",
                    "format": "heatmap",
                }
            ],
            "fieldConfig": {"defaults": {"unit": "none", "noValue": "No gradients yet"}},
        },
    ],
}


def changed(change: Change) -> dict[str, Any]:
    """Return the proper dashboard after ``change``."""
    dashboard = copy.deepcopy(PROPER)
    change(dashboard)
    return dashboard


def panel(dashboard: dict[str, Any], number: int = 2) -> dict[str, Any]:
    found: dict[str, Any] = dashboard["panels"][number - 1]
    return found


def defaults(dashboard: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = panel(dashboard)["fieldConfig"]["defaults"]
    return found


def target(dashboard: dict[str, Any], number: int = 2) -> dict[str, Any]:
    found: dict[str, Any] = panel(dashboard, number)["targets"][0]
    return found


def override(dashboard: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = panel(dashboard)["fieldConfig"]["overrides"][0]
    return found


def listed(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dashboard["templating"]["list"]
    return found
