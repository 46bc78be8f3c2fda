"""Changes to a rule, one each, that its tests must notice.

After all of them were tried, ``python -m tests.alerts.mutants > tests/golden/mutants.txt`` writes down
for which rules and tests that holds.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.alerts.rules import ALERTS, groups

TOPICS = ("scale", "numerics", "ranks", "time", "gpu", "monitoring")

TRIED = Path(__file__).parents[1] / "golden" / "mutants.txt"

_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*")
      | (?P<word>[a-zA-Z_:][\w:]*)
      | (?P<range>\[\d+[smhd]\])
      | (?P<number>\d+(?:\.\d+)?)
      | (?P<operator>==|!=|>=|<=|=~|!~|[=<>])""",
    re.VERBOSE,
)
_OPPOSITE = {
    "==": "!=",
    "!=": "==",
    ">=": "<",
    "<=": ">",
    ">": "<",
    "<": ">",
    "and": "unless",
    "unless": "and",
    "or": "and",
}
_OTHER_MATCHER = {"=": "!=", "!=": "=", "=~": "!~", "!~": "=~"}
_SECONDS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Mutant:
    """A rule with one change.

    Attributes:
        place: Where it stands in its group.
        rule: Its name.
        what: The change, as a person writes it.
        changed: The rule, changed.
    """

    place: int
    rule: str
    what: str
    changed: dict[str, Any]


def mutants(place: int, rule: dict[str, Any]) -> Iterator[Mutant]:
    """Yield every mutant of the rule at a place: numbers, comparisons, matchers, joins, waits."""
    name = rule.get("alert") or rule["record"]
    for token in _TOKEN.finditer(rule["expr"]):
        for new in _others(token):
            expr = rule["expr"][: token.start()] + new + rule["expr"][token.end() :]
            what = f"{_context(rule['expr'], token)} -> {new}"
            yield Mutant(place, name, what, {**rule, "expr": expr})
    if "alert" in rule:
        for wait in _waits(rule["for"]):
            yield Mutant(place, name, f"for: {rule['for']} -> {wait}", {**rule, "for": wait})
    if "keep_firing_for" in rule:
        less = {key: value for key, value in rule.items() if key != "keep_firing_for"}
        yield Mutant(place, name, "keep_firing_for -> none", less)


def _others(token: re.Match[str]) -> list[str]:
    text = token.group()
    if token["number"]:
        value = float(text)
        return [f"{value * 2:g}", f"{value / 2:g}"] if value else ["1"]
    if token["operator"] and token.string[token.end() :].startswith('"'):
        return [_OTHER_MATCHER[text]]
    if token["operator"] or (token["word"] and text in _OPPOSITE):
        return [_OPPOSITE[text]]
    return []


def _context(expr: str, token: re.Match[str]) -> str:
    """Return the token with what stands around it on its line."""
    before = expr[: token.start()].rsplit("\n", 1)[-1].lstrip()[-24:]
    after = expr[token.end() :].split("\n", 1)[0][:16]
    return f"{before}[{token.group()}]{after}"


def _waits(wait: str) -> list[str]:
    seconds = int(wait[:-1]) * _SECONDS[wait[-1]]
    return [f"{seconds * 4}s", f"{seconds // 4}s"] if seconds else ["1m"]


def digest(topic: str) -> str:
    """Return a digest of what decides about the mutants of a topic: rules, tests, and how they are made."""
    rules = next(group for group in groups() if group["name"] == f"ampwatch-{topic}")["rules"]
    parts = [
        json.dumps(rules, sort_keys=True).encode(),
        (ALERTS / f"{topic}.test.yml").read_bytes(),
        Path(__file__).read_bytes(),
    ]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


if __name__ == "__main__":
    for each in TOPICS:
        print(each, digest(each))  # noqa: T201 - its output is the file
