"""The shipped rules and their tests, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "dashboards" / "alerts"
RULES = ALERTS / "ampwatch.rules.yml"
TESTS = sorted(ALERTS.glob("*.test.yml"))
RUNBOOKS = ROOT / "docs" / "runbooks"

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_QUERY = re.compile(r'printf "((?:[^"\\]|\\.)*)"[^|}]*\| query')
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")


@dataclass(frozen=True)
class Alert:
    """An alerting rule."""

    name: str
    expr: str
    severity: str
    annotations: dict[str, str]

    def queries(self) -> list[str]:
        """Return what its text asks Prometheus."""
        found = _QUERY.findall(self.annotations["description"])
        return [query.replace('\\"', '"').replace("%q", '"x"') for query in found]


def load(path: Path) -> Any:
    """Return a YAML file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


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


def records() -> dict[str, list[str]]:
    """Return the expressions of the recording rules by name."""
    found: dict[str, list[str]] = {}
    for group in groups():
        for rule in group["rules"]:
            if "record" in rule:
                found.setdefault(rule["record"], []).append(rule["expr"])
    return found


def metrics(expr: str) -> set[str]:
    """Return the metrics that an expression reads: names of ours, of DCGM, of recording rules, ``up``."""
    bare = _STRING.sub('""', expr)
    names = {name for name, _ in _SELECTOR.findall(bare)}
    return {n for n in names if n.startswith(("ampwatch_", "DCGM_")) or ":" in n or n == "up"}


def labels(expr: str) -> set[tuple[str, str]]:
    """Return the labels that the selectors of an expression name, each with its metric."""
    bare = _STRING.sub('""', expr)
    return {
        (name, part.split("=")[0].split("!")[0].strip())
        for name, inside in _SELECTOR.findall(bare)
        for part in inside.split(",")
        if part.strip()
    }


def groupings(expr: str) -> set[str]:
    """Return the labels by which an expression groups and joins."""
    found = ",".join(_GROUPING.findall(_STRING.sub('""', expr)))
    return {label.strip() for label in found.split(",") if label.strip()}
