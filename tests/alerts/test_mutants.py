"""The tests of the rules notice when a threshold, a comparison, a matcher, a join or a wait changes.

All mutants of a topic go into one rule file, under names of their own, and so do their tests: promtool
evaluates hundreds of rules as fast as one, and is slow to start.

All mutants take minutes. Of rules and tests for which that was done, by their digest in
``tests/golden/mutants.txt``, a part is tried again; of any other ones all are.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.mutants import TOPICS, TRIED, Mutant, digest, mutants
from tests.alerts.promtool import failures, names_in, promtool
from tests.alerts.rules import ALERTS, RULES, groups, load, name_of, part_for, read, write

pytestmark = [pytest.mark.nightly, pytest.mark.services]

EVERY = 72
"""Of rules whose mutants were all tried, one mutant in so many is tried again: enough to see that a test can fail."""

PARTS = 6
"""Tests that the mutants of a topic are tried in: all of the largest take a promtool ten minutes and more."""

RUNNING = re.compile(
    r'\s+and on \(job, instance, run, rank\) ampwatch_run_state\{state="running"\} == 1'
)

_ORDER = "the weights are apart still: of the cause more than of all others together, of a start less than any"

SURVIVORS = {
    "run_rank:ampwatch_module_activation_headroom:log2_min: odule_activation_amax > [0]))) -> 1": (
        "an output below 1 is further from the end than any line"
    ),
    "AmpwatchMeasurementsMissing: records_dropped_total > [0] -> 1": (
        "who loses records in each of two times ten minutes has lost two"
    ),
    **{
        f"job_run:ampwatch_root_info:topk1: {what}": _ORDER
        for what in (
            "([4] * (ampwatch_roo -> 8",
            "+ ([1] * ampwatch_root -> 0.5",
            "art_timestamp_seconds / [1]e10 or ampwatch_ -> 2",
            "art_timestamp_seconds / [1]e10 or ampwatch_ -> 0.5",
        )
    },
}
"""Mutants that no test need notice, with the reason."""


def readers(name: str, rules: list[dict[str, Any]]) -> set[str]:
    """Return ``name`` and the rules that read it, in their expression or their text."""
    found = {name}
    while True:
        more = found | {name_of(rule) for rule in rules if found & read(rule)}
        if more == found:
            return found
        found = more


class Copy:
    """The rules in which a mutant shows, and their tests, under names of their own."""

    def __init__(self, mutant: Mutant, number: int, rules: list[dict[str, Any]]) -> None:
        self.mutant = mutant
        self.suffix = f"__{number}"
        self.names = readers(mutant.rule, rules)
        self._pattern = re.compile(rf"(?<![\w:])({'|'.join(map(re.escape, self.names))})(?![\w:])")
        self.rules = [
            self._renamed(mutant.changed if place == mutant.place else rule)
            for place, rule in enumerate(rules)
            if name_of(rule) in self.names
        ]

    def tests(self, test: dict[str, Any]) -> dict[str, list[Any]]:
        """Return what a test asks of these rules."""
        asked = {
            "alert_rule_test": [
                {**one, "alertname": one["alertname"] + self.suffix}
                for one in test.get("alert_rule_test", [])
                if one["alertname"] in self.names
            ],
            "promql_expr_test": [
                {**one, "expr": self._new(one["expr"]), "exp_samples": self._samples(one)}
                for one in test.get("promql_expr_test", [])
                if names_in(one["expr"]) & self.names
            ],
        }
        return {kind: entries for kind, entries in asked.items() if entries}

    def _samples(self, one: dict[str, Any]) -> list[Any]:
        samples = one.get("exp_samples") or []
        return [{**sample, "labels": self._new(sample["labels"])} for sample in samples]

    def _renamed(self, rule: dict[str, Any]) -> dict[str, Any]:
        kind = "alert" if "alert" in rule else "record"
        renamed = {**rule, kind: rule[kind] + self.suffix, "expr": self._new(rule["expr"])}
        if kind == "alert":
            text = rule["annotations"]
            renamed["annotations"] = {**text, "description": self._new(text["description"])}
        return renamed

    def _new(self, text: str) -> str:
        return self._pattern.sub(rf"\g<1>{self.suffix}", text)


def _related(copies: list[Copy]) -> list[list[Copy]]:
    """Put copies together that the same tests are about."""
    parts: dict[frozenset[str], list[Copy]] = {}
    for copy in copies:
        parts.setdefault(frozenset(copy.names), []).append(copy)
    return list(parts.values())


def _failures(
    directory: Path, rules: list[dict[str, Any]], copies: list[Copy], topic: str
) -> set[str]:
    """Return the names of the rules in whose tests these copies fail."""
    directory.mkdir()
    tests = load(ALERTS / topic)
    for test in tests["tests"]:
        asked: dict[str, list[Any]] = {"alert_rule_test": [], "promql_expr_test": []}
        for copy in copies:
            for kind, entries in copy.tests(test).items():
                asked[kind] += entries
        test.update(asked)
    tests["tests"] = [t for t in tests["tests"] if t["alert_rule_test"] or t["promql_expr_test"]]
    changed = [rule for copy in copies for rule in copy.rules]
    wanted = part_for(
        {"alert_rule_test": [{"alertname": n} for rule in changed for n in read(rule)]},
        [{"rules": rules}],
    )
    recorded = [rule for part in wanted for rule in part["rules"] if "record" in rule]
    changed = [*recorded, *changed]
    write(directory / RULES.name, {"groups": [{"name": "mutants", "rules": changed}]})
    write(directory / topic, tests)
    return failures(promtool("test", "rules", directory / topic))


def _mutants(topic: str) -> list[Copy]:
    group = next(group for group in groups() if group["name"] == f"ampwatch-{topic}")
    rules = group["rules"]
    found = [mutant for place, rule in enumerate(rules) for mutant in mutants(place, rule)]
    return [Copy(mutant, number, rules) for number, mutant in enumerate(found)]


def _said(copy: Copy) -> str:
    return f"{copy.mutant.rule}: {copy.mutant.what}"


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("topic", TOPICS)
def test_every_change_of_a_rule_is_noticed(topic: str, part: int, tmp_path: Path) -> None:
    rules = next(group for group in groups() if group["name"] == f"ampwatch-{topic}")["rules"]
    was_tried = digest(topic) in TRIED.read_text(encoding="utf-8").split()
    copies = _mutants(topic)[:: EVERY if was_tried else 1][part::PARTS]
    failed: set[str] = set()
    for number, together in enumerate(_related(copies)):
        failed |= _failures(tmp_path / str(number), rules, together, f"{topic}.test.yml")

    noticed = {name[name.rindex("__") :] for name in failed if "__" in name}
    survived = {_said(copy) for copy in copies if copy.suffix not in noticed}
    assert survived == SURVIVORS.keys() & set(map(_said, copies))


def test_mutants_that_need_not_be_noticed_exist() -> None:
    assert SURVIVORS.keys() <= {_said(copy) for topic in TOPICS for copy in _mutants(topic)}


def test_each_alert_that_asks_whether_a_run_goes_on_would_fire_after_its_end_without(
    tmp_path: Path,
) -> None:
    """A condition that is taken out of all of them at once is missed by each."""
    rules = load(RULES)
    asking = set()
    for group in rules["groups"]:
        for rule in group["rules"]:
            expr = RUNNING.sub("", rule["expr"])
            if expr != rule["expr"] and "alert" in rule:
                asking.add(rule["alert"])
                rule["expr"] = expr
    write(tmp_path / RULES.name, rules)
    shutil.copy(ALERTS / "finished.test.yml", tmp_path)

    said = promtool("test", "rules", tmp_path / "finished.test.yml")

    text = said.stdout + said.stderr
    after = text[text.index("time: 46m") :]
    assert asking <= set(re.findall(r'alertname="(\w+)"', after[after.index("got:") :]))
