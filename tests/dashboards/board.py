"""A small dashboard with one panel of each kind, in the shape of the committed ones."""

from __future__ import annotations

from typing import Any

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WHO = 'job=~"$job", instance=~"$instance", run=~"$run", rank=~"$rank"'


def variable(name: str, query: str) -> dict[str, Any]:
    return {
        "type": "query",
        "name": name,
        "label": name.capitalize(),
        "query": {"query": query, "refId": f"choice-{name}", "qryType": 1},
        "datasource": SOURCE,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "refresh": 2,
    }


def panel(
    kind: str, title: str, place: tuple[int, int, int, int], *queries: str, **more: Any
) -> Any:
    """Return a panel; ``place`` is column, row, width and height in the grid."""
    x, y, width, height = place
    query = more.pop("query", {})
    defaults = more.pop("defaults", {})
    return {
        "type": kind,
        "id": 1 + x + 24 * y,
        "title": title,
        "description": f"What {title} is.",
        "gridPos": {"x": x, "y": y, "w": width, "h": height},
        "datasource": SOURCE,
        "targets": [
            {"refId": "ABCDEFGH"[i], "expr": expr, "datasource": SOURCE, **query}
            for i, expr in enumerate(queries)
        ],
        "options": more.pop("options", {}),
        "fieldConfig": {
            "defaults": {
                "unit": "none",
                "color": {"mode": "thresholds"},
                "thresholds": {"mode": "absolute", "steps": [{"value": None, "color": "text"}]},
                "noValue": "Nothing was measured",
                **defaults,
            },
            "overrides": more.pop("overrides", []),
        },
        **more,
    }


def row(title: str, y: int, *panels: Any) -> dict[str, Any]:
    return {
        "type": "row",
        "id": 1000 + y,
        "title": title,
        "collapsed": bool(panels),
        "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
        "panels": list(panels),
    }


def board(*panels: Any) -> dict[str, Any]:
    """Return a dashboard with the usual variables and annotations."""
    return {
        "uid": "ampwatch-sample",
        "title": "ampwatch / Sample",
        "schemaVersion": 39,
        "links": [],
        "panels": list(panels),
        "templating": {
            "list": [
                {"type": "datasource", "name": "datasource", "query": "prometheus"},
                variable("job", "label_values(ampwatch_build_info, job)"),
                variable("instance", 'label_values(ampwatch_build_info{job=~"$job"}, instance)'),
                variable("run", 'label_values(ampwatch_run_info{job=~"$job"}, run)'),
                variable("rank", 'label_values(ampwatch_run_info{run=~"$run"}, rank)'),
                {"type": "adhoc", "name": "Filters", "datasource": SOURCE},
            ]
        },
        "annotations": {
            "list": [
                {
                    "name": "Alerts",
                    "enable": True,
                    "iconColor": "red",
                    "datasource": SOURCE,
                    "expr": 'ALERTS{job=~"$job", alertname=~"Ampwatch.+", alertstate="firing"}',
                    "textFormat": "{{alertname}} of {{run}}",
                    "step": "1s",
                }
            ]
        },
    }


STATE = {
    "type": "value",
    "options": {
        "0": {"text": "running", "color": "green", "index": 0},
        "1": {"text": "failed", "color": "red", "index": 1},
    },
}

OF_EACH_KIND = board(
    row("Is it healthy?", 0),
    panel(
        "stat",
        "Runs",
        (0, 1, 12, 4),
        f"count(count by (run) (ampwatch_run_info{{{WHO}}}))",
        query={"instant": True},
        options={"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "none"},
    ),
    panel(
        "stat",
        "Missing",
        (12, 1, 12, 4),
        f"ampwatch_no_such_metric{{{WHO}}}",
        query={"instant": True},
        options={"reduceOptions": {"calcs": ["lastNotNull"]}},
    ),
    panel(
        "table",
        "Ranks",
        (0, 5, 24, 6),
        f"max by (run, rank) (ampwatch_steps_total{{{WHO}}})",
        f'max by (run, rank) (ampwatch_run_state{{{WHO}, state="failed"}})',
        query={"instant": True, "format": "table"},
        options={"sortBy": [{"displayName": "Steps", "desc": True}]},
        transformations=[
            {"id": "merge", "options": {}},
            {
                "id": "organize",
                "options": {
                    "excludeByName": {"Time": True},
                    "indexByName": {"run": 0, "rank": 1, "Value #A": 2, "Value #B": 3},
                    "renameByName": {"run": "Run", "Value #A": "Steps", "Value #B": "State"},
                },
            },
        ],
        overrides=[
            {
                "matcher": {"id": "byName", "options": "State"},
                "properties": [
                    {"id": "mappings", "value": [STATE]},
                    {"id": "custom.cellOptions", "value": {"type": "color-text"}},
                ],
            }
        ],
    ),
    row(
        "Over time?",
        11,
        panel(
            "timeseries",
            "Loss scale",
            (0, 12, 12, 8),
            f"ampwatch_loss_scale{{{WHO}}}",
            query={"legendFormat": "{{run}} rank {{rank}}"},
            options={"legend": {"displayMode": "table", "calcs": ["lastNotNull", "min"]}},
            defaults={
                "unit": "short",
                "color": {"mode": "palette-classic"},
                "custom": {"scaleDistribution": {"type": "log", "log": 2}},
            },
        ),
        panel(
            "timeseries",
            "Skipped steps",
            (12, 12, 12, 8),
            f"sum by (class) (increase(ampwatch_optimizer_steps_skipped_total{{{WHO}}}[$__rate_interval]))",
            query={"legendFormat": "{{class}}"},
            options={"legend": {"displayMode": "list"}},
            defaults={
                "unit": "short",
                "color": {"mode": "palette-classic"},
                "custom": {
                    "drawStyle": "bars",
                    "fillOpacity": 60,
                    "stacking": {"mode": "normal"},
                },
            },
        ),
        panel(
            "state-timeline",
            "State",
            (0, 20, 12, 8),
            f'max by (run, rank) (ampwatch_run_state{{{WHO}, state="failed"}})',
            query={"legendFormat": "{{run}} {{rank}}"},
            options={"mergeValues": True},
            defaults={"mappings": [STATE]},
        ),
        panel(
            "heatmap",
            "Gradients",
            (12, 20, 12, 8),
            f"sum by (le) (increase(ampwatch_gradient_magnitude_bucket{{{WHO}}}[$__rate_interval]))",
            query={"format": "heatmap", "legendFormat": "{{le}}"},
            options={
                "color": {"scale": "exponential", "exponent": 0.5},
                "filterValues": {"le": 1e-9},
                "yAxis": {"unit": "sci"},
            },
        ),
    ),
)
"""Every kind, a panel without data, a collapsed row."""
