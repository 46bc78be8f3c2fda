"""Every committed dashboard is clean, and each rule notices the mistake that it is there for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.dashboards.documents import FILES, load
from tests.dashboards.example import Change, changed, defaults, listed, panel, target
from tests.dashboards.linter import RULES, lint

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


def test_the_dashboards_are_those_that_the_docs_speak_of() -> None:
    """None is forgotten, none is left over."""
    topics = ("gpu", "layers", "overview", "precision", "ranks", "run")

    assert [file.name for file in FILES] == [f"ampwatch-{topic}.json" for topic in topics]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dashboard_has_no_error_and_no_warning(file: Path) -> None:
    """No rule is left out for any panel."""
    assert lint(load(file)) == []
