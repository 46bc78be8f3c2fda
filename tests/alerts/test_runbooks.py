"""One page per alert, with four sections, about what the alert reads."""

from __future__ import annotations

import re

import pytest

from tests.alerts.rules import RUNBOOKS, alerts, metrics, records, summary

ALERTS_BY_NAME = alerts()
READ = {name: set().union(*map(metrics, exprs)) for name, exprs in records().items()}
SECTIONS = ["Symptom", "Metric", "Action", "Verification"]


def page(name: str) -> str:
    return (RUNBOOKS / f"{name}.md").read_text(encoding="utf-8")


def test_each_alert_has_a_page_and_each_page_an_alert() -> None:
    pages = {file.stem for file in RUNBOOKS.glob("*.md")} - {"README"}

    assert pages == set(ALERTS_BY_NAME)


@pytest.mark.parametrize("name", ALERTS_BY_NAME)
def test_a_page_has_the_four_sections_and_something_in_each(name: str) -> None:
    title, *parts = re.split(r"^## (.*)$", page(name), flags=re.MULTILINE)

    assert title.startswith(f"# {name}\n")
    assert parts[::2] == SECTIONS
    assert all(len(text.split()) >= 10 for text in parts[1::2])


@pytest.mark.parametrize("name", ALERTS_BY_NAME)
def test_a_page_shows_severity_and_expression_and_names_what_it_reads(name: str) -> None:
    alert = ALERTS_BY_NAME[name]
    before, shown, _ = re.split(r"^```(?:promql)?$", page(name), flags=re.MULTILINE)

    assert f"Severity: {alert.severity};" in before
    assert shown.strip() == alert.expr.strip()
    words = set(re.findall(r"[\w:]+", before[before.index("## Metric") :]))
    read = metrics(alert.expr) | {one for name in metrics(alert.expr) for one in READ.get(name, ())}
    assert words & read
    # What a page leaves to the page of the other alert that it follows from, or to all of them.
    shared = {"ampwatch_run_state", "ampwatch_loss_scale", "ampwatch_run_info"}
    shared.add("ampwatch_run_start_timestamp_seconds")  # as the README of the runbooks says
    assert {m for m in metrics(alert.expr) if ":" not in m} - shared <= words


def test_the_index_lists_each_page_with_its_severity_and_summary() -> None:
    index = (RUNBOOKS / "README.md").read_text(encoding="utf-8")

    for name, alert in ALERTS_BY_NAME.items():
        line = f"| [{name}]({name}.md) | {alert.severity} | {summary(alert)} |"
        assert line in index
