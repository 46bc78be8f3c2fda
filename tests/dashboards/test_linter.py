"""Every committed dashboard is clean, and each rule notices the mistake that it is there for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.dashboards.documents import FILES, load
from tests.dashboards.example import PROPER, changed, defaults, listed, panel, target
from tests.dashboards.lint_targets import ERROR, WARNING
from tests.dashboards.linter import IMPLIED, RULES, lint

if TYPE_CHECKING:
    from pathlib import Path

    from tests.dashboards.example import Change

TARGET = 'job=~"$job", instance=~"$instance"'


def source(dashboard: dict[str, Any]) -> dict[str, Any]:
    return listed(dashboard)[0]


def job(dashboard: dict[str, Any]) -> dict[str, Any]:
    return listed(dashboard)[1]


def asks(expression: str) -> Change:
    return lambda dashboard: target(dashboard).update(expr=expression)


def of_unit(unit: str) -> Change:
    def change(dashboard: dict[str, Any]) -> None:
        panel(dashboard)["fieldConfig"]["overrides"].clear()
        defaults(dashboard).update(unit=unit)

    return change


MISTAKES: list[tuple[str, str, str, Change]] = [
    (
        "no datasource variable",
        "template-datasource-rule",
        ERROR,
        lambda d: (listed(d).clear(), panel(d).update(type="heatmap")),
    ),
    (
        "a datasource of another label",
        "template-datasource-rule",
        WARNING,
        lambda d: source(d).update(label="data source"),
    ),
    ("no job", "template-job-rule", ERROR, lambda d: listed(d).pop(1)),
    ("one job only", "template-job-rule", ERROR, lambda d: job(d).update(multi=False)),
    (
        "a fixed datasource of a variable",
        "template-job-rule",
        ERROR,
        lambda d: job(d).update(datasource={"uid": "abc"}),
    ),
    ("another label", "template-job-rule", WARNING, lambda d: job(d).update(label="job")),
    ("no instance", "template-instance-rule", ERROR, lambda d: listed(d).pop(2)),
    (
        "an instance without a label",
        "template-instance-rule",
        WARNING,
        lambda d: listed(d)[2].pop("label"),
    ),
    (
        "a variable that asks nothing",
        "template-label-promql-rule",
        ERROR,
        lambda d: job(d).update(query="up"),
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
    ("no targets", "panel-no-targets-rule", ERROR, lambda d: panel(d).update(targets=[])),
    ("no PromQL", "target-promql-rule", ERROR, asks("sum(")),
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
    ("a naked counter", "target-counter-agg-rule", ERROR, asks(f"steps_total{{{TARGET}}}")),
]


def test_the_clean_dashboard_is_clean() -> None:
    """Every mistake below is the only one."""
    assert lint(PROPER) == []


@pytest.mark.parametrize(
    ("rule", "severity", "change"),
    [mistake[1:] for mistake in MISTAKES],
    ids=[mistake[0] for mistake in MISTAKES],
)
def test_a_mistake_is_found_by_its_rule_alone(rule: str, severity: str, change: Change) -> None:
    """Once, and as bad as it is."""
    found = lint(changed(change))

    assert [(problem.rule, problem.severity) for problem in found] == [(rule, severity)]
    assert found[0].dashboard == "ampwatch / Run"


def test_every_rule_has_a_mistake() -> None:
    """The linter has 17: 14 stand here, three are implied by the conventions."""
    assert len(RULES) + len(IMPLIED) == 17
    assert set(RULES) == {rule for _, rule, _, _ in MISTAKES}
    assert not IMPLIED & set(RULES)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: defaults(d).update(unit="", mappings=[]),
        lambda d: panel(d)["fieldConfig"]["overrides"].append(
            {"properties": [{"id": "unit", "value": "percentunit"}]}
        ),
        lambda d: panel(d).update(type="text", targets=[], description=""),
        lambda d: panel(d).update(targets=[{"panelId": 3}]),
        asks(f"increase(steps_total{{{TARGET}}}[1h])"),
        asks(f"irate(steps_total{{{TARGET}}}[$__rate_interval]) * $__interval_ms"),
        asks(f"max_over_time(loss_scale{{{TARGET}}}[1h:5m])"),
    ],
    ids=["mapped", "override", "text", "panel", "increase", "irate", "subquery"],
)
def test_what_the_rules_allow_passes(change: Change) -> None:
    """A linter that cries wolf is switched off."""
    assert lint(changed(change)) == []


def test_folded_panels_are_checked_as_well() -> None:
    """A row hides panels from the reader, not from the linter."""

    def fold(dashboard: dict[str, Any]) -> None:
        hidden = dashboard["panels"].pop(1)
        hidden.pop("description")
        dashboard["panels"][0]["panels"] = [hidden]

    assert [problem.rule for problem in lint(changed(fold))] == ["panel-title-description-rule"]


def test_the_dashboards_are_those_that_the_docs_speak_of() -> None:
    """None is forgotten, none is left over."""
    topics = ("gpu", "layers", "overview", "precision", "ranks", "run")

    assert [file.name for file in FILES] == [f"ampwatch-{topic}.json" for topic in topics]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dashboard_has_no_error_and_no_warning(file: Path) -> None:
    """No rule is left out for any panel."""
    assert lint(load(file)) == []
