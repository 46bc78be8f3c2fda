"""The shipped rules and their tests, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass
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

_QUERY = re.compile(r'printf "((?:[^"\\]|\\.)*)"[^|}]*\| query')


@dataclass(frozen=True)
class Alert:
    """An alerting rule."""

    name: str
    expr: str
    severity: str
    annotations: dict[str, str]


def load(path: Path) -> Any:
    """Return a YAML file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def queries(description: str) -> list[str]:
    """Return what the text of an alert asks Prometheus."""
    found = _QUERY.findall(description)
    return [query.replace('\\"', '"').replace("%q", '"x"') for query in found]


def groups(path: Path = RULES) -> list[dict[str, Any]]:
    """Return the groups of a rule file."""
    return list(load(path)["groups"])


def alerts() -> dict[str, Alert]:
    """Return the alerting rules by name."""
    found = [rule for group in groups() for rule in group["rules"] if "alert" in rule]
    names = [rule["alert"] for rule in found]
    assert len(set(names)) == len(names)
    return {
        rule["alert"]: Alert(
            rule["alert"], rule["expr"], rule["labels"]["severity"], rule["annotations"]
        )
        for rule in found
    }


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
