"""Dashboards and rules speak only of what is exported, and all of what is exported is spoken of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ampwatch.host.metrics.labels import LABELS
from tests.alerts.rules import ROOT, queries
from tests.dashboards import documents
from tests.dashboards.documents import FILES, RULE_FILES, expressions, load
from tests.dashboards.labels import Labels
from tests.dashboards.names import EXPORTED, Names, metrics, vocabulary
from tests.dashboards.promql import parse

MISTAKES = [
    ("a metric", "ampwatch_step_total", "", "ampwatch_step_total: no such metric"),
    (
        "a suffix",
        "rate(ampwatch_step_duration_seconds[5m])",
        "",
        "ampwatch_step_duration_seconds: no such metric",
    ),
    (
        "a label in a matcher",
        'ampwatch_loss_scale{module="head"}',
        "",
        "ampwatch_loss_scale has no label module",
    ),
    (
        "a value",
        'ampwatch_run_state{state="dead"}',
        "",
        "ampwatch_run_state: state is never 'dead'",
    ),
    (
        "a value of another metric",
        'rate(ampwatch_gpu_throttle_seconds_total{reason="not_listed"}[5m])',
        "",
        "ampwatch_gpu_throttle_seconds_total: reason is never 'not_listed'",
    ),
    (
        "a label to group by",
        "sum by (run, model) (ampwatch_loss)",
        "",
        "sum by or without model: no series there has that label",
    ),
    (
        "a label to match on",
        "ampwatch_gpu_process_info * on (uuid) group_left (name) ampwatch_gpu_temperature_celsius",
        "",
        "group_left name: no series there has that label",
    ),
    (
        "a label that was summed away",
        "sum by (run) (ampwatch_loss)",
        "rank {{rank}}",
        "legend: the answer has no label rank",
    ),
    (
        "no PromQL",
        "sum(",
        "",
        "unclosed left parenthesis in: sum(",
    ),
]


@pytest.mark.parametrize(
    ("expression", "legend", "problem"),
    [mistake[1:] for mistake in MISTAKES],
    ids=[mistake[0] for mistake in MISTAKES],
)
def test_a_mistake_is_found(expression: str, legend: str, problem: str) -> None:
    """Each problem is told in words; twice, if it stands there twice."""
    assert set(Names().problems(expression, legend)) == {problem}


def test_labels_with_a_vocabulary_have_the_one_that_the_docs_list() -> None:
    """Every value that a matcher may ask for stands on the page of metrics, or on one that it links to."""
    # The text on optimizers has a range in place of a list; dtypes of casts refer to those of ops.
    for name, labels in EXPORTED.items():
        for label in (labels & set(LABELS)) - {"optimizer"}:
            text = LABELS["dtype" if label.endswith("_dtype") else label]
            linked = re.findall(r"\]\(([\w/]+\.md)", text)
            texts = [text, *((ROOT / "docs" / page).read_text(encoding="utf-8") for page in linked)]
            listed = set(re.findall(r"`(\w+)`", " ".join(texts)))
            assert (vocabulary(name, label) or set()) <= listed, (name, label)


def recorded() -> dict[str, frozenset[str]]:
    """Return the labels of every recording rule."""
    rules = [rule for _, rule in all_rules() if "record" in rule]
    found: dict[str, frozenset[str]] = {}
    for _ in rules:  # a rule may read others, which may stand further down
        before = dict(found)
        for rule in rules:
            answer = Labels(Names(found).labels_of).of(parse(rule["expr"]))
            found[rule["record"]] = answer | frozenset(rule.get("labels", {}))
        if found == before:
            break
    return found


def all_rules() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every rule of the files with alerts, and which one it is."""
    for file in RULE_FILES:
        for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                yield f"{file.name}: {rule.get('alert') or rule['record']}", rule


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dashboard_speaks_of_what_is_exported(file: Path) -> None:
    """Panels, annotations and variables: a name that is not there is an empty panel."""
    names, dashboard = Names(recorded()), load(file)
    problems = [
        f"{expression.where}: {problem}"
        for expression in expressions(dashboard)
        for problem in names.problems(expression.text, expression.legend)
    ]
    for variable in documents.variables(dashboard, "query"):
        series, _, label = documents.question(variable)[:-1].partition("(")[2].rpartition(", ")
        problems += [
            f"{variable['name']}: {problem}"
            for problem in names.problems(series, f"{{{{{label}}}}}")
        ]

    assert problems == []


def test_the_rules_speak_of_what_is_exported() -> None:
    """Expressions, and what the texts of an alert ask and the labels that they speak of."""
    names = Names(recorded())
    problems = []
    for where, rule in all_rules():
        texts = " ".join(rule.get("annotations", {}).values())
        spoken = re.findall(r"\$labels\.(\w+)", texts)
        legend = " ".join(f"{{{{{label}}}}}" for label in spoken)
        extra = rule.get("labels", {})
        problems += [
            f"{where}: {problem}" for problem in names.problems(rule["expr"], legend, extra=extra)
        ]
        problems += [
            f"{where}: {problem}" for query in queries(texts) for problem in names.problems(query)
        ]

    assert problems == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_description_names_metrics_that_its_panel_reads(file: Path) -> None:
    """A reader finds them in the docs, and in Grafana's Explore."""
    for panel in documents.drawn(load(file)):
        read = set().union(*(metrics(target["expr"]) for target in panel.get("targets") or ()))
        line = panel.get("description", "").rpartition("Metric: ")[2]
        named = set(re.findall(r"`(\w+)`", line))

        assert named, panel["title"]
        assert named <= read, panel["title"]
