"""Tests of the linter: each rule notices the mistake that it is there for, and no other one does."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from tests.dashboards.lint_targets import ERROR, WARNING
from tests.dashboards.linter import RULES, lint

if TYPE_CHECKING:
    from collections.abc import Callable

    Change = Callable[[dict[str, Any]], object]

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
TARGET = 'job=~"$job", instance=~"$instance"'
CLEAN: dict[str, Any] = {
    "title": "Clean",
    "editable": False,
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
                    "multi": True,
                    "allValue": ".+",
                    "refresh": 2,
                }
                for name in ("job", "instance")
            ),
        ]
    },
    "panels": [
        {"type": "row", "title": "Why?", "panels": []},
        {
            "id": 7,
            "type": "timeseries",
            "title": "Steps",
            "description": "Steps a second.",
            "datasource": SOURCE,
            "fieldConfig": {"defaults": {"unit": "ops"}, "overrides": []},
            "targets": [{"expr": f"rate(steps_total{{{TARGET}}}[$__rate_interval])"}],
        },
    ],
}


def changed(change: Change) -> dict[str, Any]:
    """Return the clean dashboard after ``change``."""
    dashboard = copy.deepcopy(CLEAN)
    change(dashboard)
    return dashboard


def source(dashboard: dict[str, Any]) -> dict[str, Any]:
    variable: dict[str, Any] = dashboard["templating"]["list"][0]
    return variable


def job(dashboard: dict[str, Any]) -> dict[str, Any]:
    variable: dict[str, Any] = dashboard["templating"]["list"][1]
    return variable


def panel(dashboard: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = dashboard["panels"][1]
    return found


def asks(expression: str) -> Change:
    return lambda dashboard: panel(dashboard)["targets"][0].update(expr=expression)


def of_unit(unit: str) -> Change:
    return lambda dashboard: panel(dashboard)["fieldConfig"]["defaults"].update(unit=unit)


def asks_loki(expression: str) -> Change:
    query = {"datasource": {"type": "loki"}, "expr": expression}
    return lambda dashboard: panel(dashboard).update(type="logs", targets=[query])


def ask_loki_everywhere(dashboard: dict[str, Any]) -> None:
    source(dashboard).update(query="loki")
    asks_loki("{}[5m]")(dashboard)


def call_one_of_two_logs(dashboard: dict[str, Any]) -> None:
    source(dashboard).update(name="prometheus_datasource", label="Prometheus data source")
    panel(dashboard)["datasource"] = {"uid": "$prometheus_datasource"}
    logs = {"name": "logs", "label": "Loki data source", "type": "datasource", "query": "loki"}
    dashboard["templating"]["list"].append(logs)


MISTAKES: list[tuple[str, str, str, Change]] = [
    (
        "no datasource variable",
        "template-datasource-rule",
        ERROR,
        lambda d: (d["templating"]["list"].clear(), panel(d).update(type="heatmap")),
    ),
    (
        "a datasource of another name",
        "template-datasource-rule",
        ERROR,
        call_one_of_two_logs,
    ),
    (
        "a datasource of another label",
        "template-datasource-rule",
        WARNING,
        lambda d: source(d).update(label="data source"),
    ),
    ("no job", "template-job-rule", ERROR, lambda d: d["templating"]["list"].pop(1)),
    ("one job only", "template-job-rule", ERROR, lambda d: job(d).update(multi=False)),
    ("another value for all", "template-job-rule", ERROR, lambda d: job(d).update(allValue=".*")),
    ("a job by hand", "template-job-rule", ERROR, lambda d: job(d).update(type="custom")),
    (
        "a fixed datasource of a variable",
        "template-job-rule",
        ERROR,
        lambda d: job(d).update(datasource={"uid": "abc"}),
    ),
    ("another label", "template-job-rule", WARNING, lambda d: job(d).update(label="job")),
    ("no instance", "template-instance-rule", ERROR, lambda d: d["templating"]["list"].pop(2)),
    (
        "an instance without a label",
        "template-instance-rule",
        WARNING,
        lambda d: d["templating"]["list"][2].pop("label"),
    ),
    (
        "a variable that asks nothing",
        "template-label-promql-rule",
        ERROR,
        lambda d: job(d).update(query="up"),
    ),
    (
        "a function that Grafana lacks",
        "template-label-promql-rule",
        ERROR,
        lambda d: job(d).update(query={"query": "labels(up, job)"}),
    ),
    (
        "a variable that asks no PromQL",
        "template-label-promql-rule",
        ERROR,
        lambda d: job(d).update(query='label_values(up{job="x", job)'),
    ),
    (
        "a variable that is read once",
        "template-on-time-change-reload-rule",
        ERROR,
        lambda d: job(d).update(refresh=1),
    ),
    (
        "a fixed datasource of a panel",
        "panel-datasource-rule",
        ERROR,
        lambda d: panel(d).update(datasource={"uid": "ampwatch-prometheus"}),
    ),
    (
        "no title",
        "panel-title-description-rule",
        ERROR,
        lambda d: panel(d).update(title=""),
    ),
    (
        "no description",
        "panel-title-description-rule",
        ERROR,
        lambda d: panel(d).pop("description"),
    ),
    ("no unit", "panel-units-rule", ERROR, lambda d: panel(d).pop("fieldConfig")),
    ("a unit of one's own", "panel-units-rule", ERROR, of_unit("suffix: bits")),
    (
        "an override to a unit of one's own",
        "panel-units-rule",
        ERROR,
        lambda d: panel(d)["fieldConfig"]["overrides"].append(
            {"properties": [{"id": "unit", "value": "count:tok/s"}]}
        ),
    ),
    ("no targets", "panel-no-targets-rule", ERROR, lambda d: panel(d).update(targets=[])),
    ("no PromQL", "target-promql-rule", ERROR, asks("sum(")),
    ("nothing asked", "target-promql-rule", ERROR, asks("")),
    (
        "a panel that is not there",
        "target-promql-rule",
        ERROR,
        lambda d: panel(d).update(targets=[{"panelId": 8}]),
    ),
    (
        "a fixed range of a rate",
        "target-rate-interval-rule",
        ERROR,
        asks(f"rate(steps_total{{{TARGET}}}[5m])"),
    ),
    ("another job", "target-job-rule", ERROR, asks('up{job="$job", instance=~"$instance"}')),
    ("any job", "target-job-rule", ERROR, asks('up{instance=~"$instance"}')),
    ("any instance", "target-instance-rule", ERROR, asks('up{job=~"$job"}')),
    (
        "an instance on one side only",
        "target-instance-rule",
        ERROR,
        asks(f'up{{{TARGET}}} / up{{job=~"$job"}}'),
    ),
    ("a naked counter", "target-counter-agg-rule", ERROR, asks(f"steps_total{{{TARGET}}}")),
    (
        "a mean of a counter",
        "target-counter-agg-rule",
        ERROR,
        asks(f"avg_over_time(steps_total{{{TARGET}}}[1h])"),
    ),
    (
        "an editable dashboard",
        "uneditable-dashboard",
        ERROR,
        lambda d: d.pop("editable"),
    ),
]


def test_the_clean_dashboard_is_clean() -> None:
    """Every mistake below is the only one."""
    assert lint(CLEAN) == []


@pytest.mark.parametrize(
    ("rule", "severity", "change"),
    [mistake[1:] for mistake in MISTAKES],
    ids=[mistake[0] for mistake in MISTAKES],
)
def test_a_mistake_is_found_by_its_rule_alone(rule: str, severity: str, change: Change) -> None:
    """Once, and as bad as it is."""
    found = lint(changed(change))

    assert [(problem.rule, problem.severity) for problem in found] == [(rule, severity)]
    assert found[0].dashboard == "Clean"


def test_what_nothing_here_can_read_is_a_problem_of_loki() -> None:
    """These dashboards ask Prometheus, and only that."""
    loki = lint(changed(asks_loki("sum(rate({app='x'}[$__auto]))")))
    hurried = lint(changed(ask_loki_everywhere))

    assert "target-logql-rule" in {problem.rule for problem in loki}
    assert "target-logql-auto-rule" not in {problem.rule for problem in loki}
    assert "target-logql-auto-rule" in {problem.rule for problem in hurried}


def test_every_rule_has_a_mistake() -> None:
    """17 rules, none of them untried."""
    tried = {rule for _, rule, _, _ in MISTAKES} | {"target-logql-rule", "target-logql-auto-rule"}

    assert len(RULES) == 17
    assert set(RULES) == tried


@pytest.mark.parametrize(
    "change",
    [
        lambda d: panel(d)["fieldConfig"]["defaults"].update(unit="", mappings=[]),
        lambda d: panel(d)["fieldConfig"]["overrides"].append(
            {"properties": [{"id": "unit", "value": "percentunit"}]}
        ),
        lambda d: panel(d).update(type="text", targets=[], description=""),
        lambda d: panel(d).update(targets=[{"panelId": 7}]),
        asks(f"increase(steps_total{{{TARGET}}}[1h])"),
        asks(f"irate(steps_total{{{TARGET}}}[$__rate_interval]) * $__interval_ms"),
        asks(f"max_over_time(loss_scale{{{TARGET}}}[1h:5m])"),
    ],
    ids=["mapped", "override", "text", "panel", "increase", "irate", "subquery"],
)
def test_what_the_rules_allow_passes(change: Change) -> None:
    """A linter that cries wolf is switched off."""
    assert lint(changed(change)) == []


def test_folded_panels_are_looked_at_as_well() -> None:
    """A row hides panels from the reader, not from the linter."""

    def fold(dashboard: dict[str, Any]) -> None:
        hidden = dashboard["panels"].pop()
        hidden.pop("description")
        dashboard["panels"][0]["panels"].append(hidden)

    assert [problem.rule for problem in lint(changed(fold))] == ["panel-title-description-rule"]
