"""Every committed dashboard keeps to the conventions of the house and the rules of the linter, and a breach would be noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.dashboards.conventions import problems
from tests.dashboards.documents import FILES, load
from tests.dashboards.example import (
    CHOSEN,
    ROW,
    Change,
    changed,
    defaults,
    listed,
    override,
    panel,
    target,
)
from tests.dashboards.linter import RULES, lint

BREACHES: list[tuple[str, str, Change]] = [
    (
        "a link to nothing",
        "link to no dashboard of ours",
        lambda d: panel(d, 304)["fieldConfig"]["defaults"]["links"][0].update(
            url="/d/run?${__url_time_range}&${datasource:queryparam}"
        ),
    ),
    ("no question", "expected a question", lambda d: panel(d, ROW).update(title="Health")),
    ("overlap", "lies over ", lambda d: panel(d)["gridPos"].update(x=15)),
    (
        "an alarm about nothing",
        "no alarming colour first",
        lambda d: defaults(d)["thresholds"]["steps"][0].update(color="red"),
    ),
    (
        "an override of nothing",
        "override for 'Run': expected one of",
        lambda d: override(d)["matcher"].update(options="Run"),
    ),
    (
        "a course that nobody asked for",
        "expected the course of a stat",
        lambda d: (
            target(d).update(instant=True),
            panel(d).update(type="stat", options={"graphMode": "area"}),
        ),
    ),
    (
        "other lines at each point",
        "chooses anew at each",
        lambda d: target(d).update(expr=f"topk(5, ampwatch_loss_scale{{{CHOSEN}}})"),
    ),
    (
        "events that count four times",
        "expected an interval",
        lambda d: target(d).update(
            expr=f"increase(ampwatch_steps_total{{{CHOSEN}}}[$__rate_interval])"
        ),
    ),
    (
        "every run",
        'ampwatch_loss_scale: expected run=~"$run"',
        lambda d: target(d).update(expr='ampwatch_loss_scale{job=~"$job"}'),
    ),
]


@pytest.mark.parametrize(
    ("problem", "change"),
    [breach[1:] for breach in BREACHES],
    ids=[breach[0] for breach in BREACHES],
)
def test_a_breach_is_reported_in_words(problem: str, change: Change) -> None:
    """The text names what was expected, and where."""
    found = problems(changed(change))

    assert found
    assert any(problem in text for text in found), found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_committed_dashboard_keeps_to_the_conventions(file: Path) -> None:
    """All of them, in every panel."""
    dashboard = load(file)

    assert dashboard["uid"] == file.stem
    assert problems(dashboard) == []


TARGET = 'job=~"$job", instance=~"$instance"'


def asks(expression: str) -> Change:
    return lambda dashboard: target(dashboard).update(expr=expression)


def of_unit(unit: str) -> Change:
    def change(dashboard: dict[str, Any]) -> None:
        panel(dashboard)["fieldConfig"]["overrides"].clear()
        defaults(dashboard).update(unit=unit)

    return change


MISTAKES: dict[str, Change] = {
    "template-on-time-change-reload-rule": lambda d: listed(d)[1].update(refresh=1),
    "panel-title-description-rule": lambda d: panel(d).pop("description"),
    "panel-units-rule": of_unit("suffix: bits"),
    "target-rate-interval-rule": asks(f"rate(steps_total{{{TARGET}}}[5m])"),
    "target-job-rule": asks('up{instance=~"$instance"}'),
    "target-instance-rule": asks('up{job=~"$job"}'),
    "target-counter-agg-rule": asks(f"steps_total{{{TARGET}}}"),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_mistake_is_found_by_its_rule_alone(rule: str) -> None:
    """Once."""
    assert [found for found, _ in lint(changed(MISTAKES[rule]))] == [rule]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dashboard_has_no_error_and_no_warning(file: Path) -> None:
    """No rule is left out for any panel."""
    assert lint(load(file)) == []
