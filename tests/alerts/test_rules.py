"""The shipped rules: valid, tested, about metrics that exist, and each with its page."""

from __future__ import annotations

import re
import string
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.promtool import promtool
from tests.alerts.rules import (
    ALERTS,
    FLEET_RULES,
    RULES,
    RUNBOOKS,
    TESTS,
    alerts,
    groups,
    load,
    metrics,
    part_for,
    records,
    summary,
    write,
)

ALERTS_BY_NAME = alerts()
EXPRESSIONS = [rule["expr"] for group in groups() for rule in group["rules"]]


@pytest.mark.services
@pytest.mark.parametrize("file", [RULES, FLEET_RULES], ids=lambda file: file.name)
def test_promtool_finds_no_fault_with_the_rules(file: Path) -> None:
    said = promtool("check", "rules", "--lint=all", "--lint-fatal", file)

    assert (said.returncode, said.stderr) == (0, ""), said.stdout
    assert f"{sum(len(group['rules']) for group in groups(file))} rules found" in said.stdout


@pytest.mark.services
@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.name)
def test_the_rules_pass_their_tests(file: Path, tmp_path: Path) -> None:
    """Each test with the rules that decide about it: promtool evaluates all that it is given at each tick."""
    tests = load(file)
    (shipped,) = tests["rule_files"]
    parts = []
    for number, test in enumerate(tests["tests"]):
        rules, alone = tmp_path / f"{number}.rules.yml", tmp_path / f"{number}.test.yml"
        write(rules, {"groups": part_for(test, groups(ALERTS / shipped))})
        write(alone, {**tests, "rule_files": [rules.name], "tests": [test]})
        parts.append(alone)

    said = promtool("test", "rules", *parts)

    assert said.returncode == 0, said.stdout + said.stderr


def cases(kind: str) -> list[dict[str, Any]]:
    """Return what all tests of the rules ask, of a kind."""
    return [one for file in TESTS for test in load(file)["tests"] for one in test.get(kind, ())]


def test_each_alert_is_tested_before_it_fires_and_with_its_whole_text_when_it_does() -> None:
    asked = cases("alert_rule_test")
    fires = {
        one["alertname"]
        for one in asked
        if any(alert.get("exp_annotations") for alert in one.get("exp_alerts", []))
    }
    waits = {one["alertname"] for one in asked if not one.get("exp_alerts")}
    exprs = " ".join(one["expr"] for one in cases("promql_expr_test"))
    compared = set(re.findall(r'alertname="(\w+)', exprs))

    assert fires == set(ALERTS_BY_NAME)
    assert fires <= waits | compared


def test_the_healthy_run_has_every_metric_that_an_alert_reads() -> None:
    """Else its silence would say nothing."""
    healthy = next(file for file in TESTS if file.name == "healthy.test.yml")
    series = {
        one["series"].partition("{")[0]
        for test in load(healthy)["tests"]
        for one in test["input_series"]
    }
    read = set().union(*map(metrics, EXPRESSIONS)) - set(records())

    # Absent where nothing alarming is found, no rank has failed and no alert has fired.
    read -= {"ampwatch_root_info", "ampwatch_rank_failure_info", "ALERTS"}
    assert read <= series


def test_a_page_outlasts_a_daemon_that_is_away() -> None:
    rules = [rule for group in groups() for rule in group["rules"] if "alert" in rule]
    pages = [rule for rule in rules if ALERTS_BY_NAME[rule["alert"]].severity == "critical"]

    assert pages
    assert {rule["alert"]: rule.get("keep_firing_for") for rule in pages} == {
        rule["alert"]: "5m" for rule in pages
    }


@pytest.mark.parametrize("name", ALERTS_BY_NAME)
def test_an_alert_says_what_it_is_and_where_to_read_on(name: str) -> None:
    alert = ALERTS_BY_NAME[name]
    text = alert.annotations

    assert name.startswith("Ampwatch")
    assert alert.severity in {"critical", "warning", "info"}
    shared = {"summary", "description", "action", "runbook_url", "dashboard"}
    assert shared <= set(text) <= shared | {"finding", "page"}
    assert re.fullmatch(r"[A-Z].*\.", text["summary"])
    assert summary(alert).startswith(tuple(string.ascii_uppercase))
    assert ("finding" in text) <= ("page" in text)
    assert text["runbook_url"].endswith(f"/docs/runbooks/{name}.md")
    assert re.match(r"/d/ampwatch-(overview|run|layers|precision|gpu|ranks)\b", text["dashboard"])


def test_there_are_no_more_alerts_than_can_be_known() -> None:
    assert len(ALERTS_BY_NAME) <= 24


def test_a_dashboard_that_asks_for_all_machines_shows_every_alert() -> None:
    """It asks for ``job=~".+", instance=~".+"``, so each has both, also those about whole runs."""
    assert not {
        case["alertname"]
        for case in cases("alert_rule_test")
        for expected in case.get("exp_alerts", ())
        if not {"job", "instance"} <= expected["exp_labels"].keys()
    }


def test_recording_rules_are_named_level_metric_operations() -> None:
    for name in records():
        level, metric, operations = name.split(":")

        assert set(level.split("_")) <= {"job", "instance", "run", "rank", "uuid"}
        assert metric.startswith("ampwatch_")
        assert operations


def test_no_alert_reads_the_increase_of_a_counter_that_is_born_with_its_event() -> None:
    """Series per module and the codes of XIDs appear when something has happened."""
    late = {"ampwatch_module_gradient_nonfinite_elements_total", "ampwatch_gpu_xid_errors_total"}

    assert not late & set().union(*map(metrics, EXPRESSIONS))


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
