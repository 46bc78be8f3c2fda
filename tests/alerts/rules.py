"""The shipped rules and their tests, as data."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from tests.dashboards.promql import selectors

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "dashboards" / "alerts"
RULES = ALERTS / "ampwatch.rules.yml"
FLEET_RULES = ALERTS / "ampwatch.fleet.rules.yml"
TESTS = sorted(ALERTS.glob("*.test.yml"))
RUNBOOKS = ROOT / "docs" / "runbooks"
SEVERITIES = ("critical", "warning", "info")

_QUERY = re.compile(r'printf "((?:[^"\\]|\\.)*)"[^|}]*\| query')


@dataclass(frozen=True)
class Alert:
    """An alerting rule; its severity is the gravest that it may have."""

    name: str
    expr: str
    severity: str
    annotations: dict[str, str]


_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader in C, where PyYAML has it: the rules and their tests are ten thousand lines."""


class _Loader(_BASE):  # type: ignore[misc]
    """A loader for which ``0x60`` is sixty times nothing, as for promtool, and not 96."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as PyYAML has it
        first: [(tag, form) for tag, form in forms if not (first == "0" and tag.endswith(":int"))]
        for first, forms in _BASE.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile("0$"), ["0"])


def load(path: Path) -> Any:
    """Return a YAML file."""
    return yaml.load(path.read_text(encoding="utf-8"), _Loader)


def write(path: Path, content: Any) -> None:
    """Write a YAML file; JSON is YAML, and many times as fast to write."""
    path.write_text(json.dumps(content), encoding="utf-8")


def queries(description: str) -> list[str]:
    """Return what the text of an alert asks Prometheus."""
    found = _QUERY.findall(description)
    return [query.replace('\\"', '"').replace("%q", '"x"') for query in found]


def groups(path: Path = RULES) -> list[dict[str, Any]]:
    """Return the groups of a rule file."""
    return list(load(path)["groups"])


def alerts() -> dict[str, Alert]:
    """Return the alerting rules by name."""
    found: dict[str, Alert] = {}
    for rule in chain.from_iterable(group["rules"] for group in groups()):
        if name := rule.get("alert"):
            assert name not in found
            severity = next(word for word in SEVERITIES if word in rule["labels"]["severity"])
            found[name] = Alert(name, rule["expr"], severity, rule["annotations"])
    return found


def name_of(rule: dict[str, Any]) -> str:
    """Return the name of an alert, or of what a rule records."""
    return str(rule.get("alert") or rule["record"])


def read(rule: dict[str, Any]) -> set[str]:
    """Return every word of a rule that may be the name of another, in its expression or its text."""
    return _words([rule["expr"], *rule.get("annotations", {}).values()])


_OPEN = re.compile(r'__name__|ALERTS(?!\{alertname="|\{alertstate="[a-z]+",alertname=")')
"""An expression of which one cannot tell by its words which rules it reads."""


def part_for(test: dict[str, Any], all_groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return of groups what decides about a test: the rules that it asks for, and those that they read.

    A test that asks for whatever alert there is, or for names by a pattern, has all of them.
    """
    asked = [query["expr"] for query in test.get("promql_expr_test", ())]
    if any(_OPEN.search(expr) for expr in asked):
        return all_groups
    rules: dict[str, list[dict[str, Any]]] = {}
    for rule in chain.from_iterable(group["rules"] for group in all_groups):
        rules.setdefault(name_of(rule), []).append(rule)
    named = {case["alertname"] for case in test.get("alert_rule_test", ())} | _words(asked)
    wanted: set[str] = set()
    while fresh := (named & rules.keys()) - wanted:
        wanted |= fresh
        named = set().union(*(read(rule) for name in fresh for rule in rules[name]))
    parts = [
        {**group, "rules": [rule for rule in group["rules"] if name_of(rule) in wanted]}
        for group in all_groups
    ]
    return [part for part in parts if part["rules"]]


def _words(texts: list[str]) -> set[str]:
    return set(re.findall(r"[a-zA-Z_:][\w:]*", " ".join(texts).replace('"', " ")))


def summary(alert: Alert) -> str:
    """Return what an alert says of whichever run, GPU or host, as a sentence that stands alone."""
    of_all = re.sub(r"^(Run|GPU|Host) \{\{.*?: ", "", alert.annotations["summary"])
    return of_all[:1].upper() + re.sub(r" \([^)]*\{\{[^)]*\)", "", of_all[1:])


def records() -> dict[str, list[str]]:
    """Return the expressions of the recording rules by name."""
    found: dict[str, list[str]] = {}
    for group in groups():
        for rule in group["rules"]:
            if "record" in rule:
                found.setdefault(rule["record"], []).append(rule["expr"])
    return found


def metrics(expr: str) -> set[str]:
    """Return the series that an expression reads, by name."""
    return {selector.name for selector in selectors(expr)}
