"""The runs that the tests of the rules make up are in states that a daemon can describe."""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from ampwatch.report.verdict import Standing, judge
from ampwatch.wire.records import RunState, Severity
from tests.alerts.rules import TESTS, load
from tests.workshop.records import alarm, step

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

State = tuple[str, str, str | None]
"""What a daemon says of a rank: state of its process, health, severity of its root."""

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_PART = re.compile(r"(_|stale|-?[\d.e-]+?)(?:\+[\d.]+)?(?:x(\d+))?$")


def producible() -> set[State]:
    """Return what the daemon's verdict can say of a rank that has been seen to step."""
    found: set[State] = set()
    for state, severity, steps_ago in product(RunState, (None, *Severity), (0, 100_000)):
        last = 100_000 - steps_ago
        made = [alarm(severity=severity, first_step=0, last_step=last)] if severity else []
        standing = Standing(
            rank=0,
            state=state,
            reason="OSError" if state is RunState.FAILED else "",
            started_s=0.0,
            last_s=1e9,
            newest=step(100_000),
            findings={one.kind: one for one in made},
            seen_s=lambda _: -1e9,
            skips={},
            recent=lambda: ({}, 1000),
            time_of=lambda _: None,
        )
        verdict = judge([standing], 1, 1e9)
        root = verdict.by_rank[0].root
        found.add((state.name.lower(), verdict.level.label, root.severity.value if root else None))
    return found


def values(text: str) -> list[str]:
    """Return the samples of a series whose values do not grow; "" where there is none."""
    found: list[str] = []
    for part in text.split():
        match = _PART.match(part)
        assert match is not None, part
        value, times = match[1], match[2]
        gone = value in {"_", "stale"}
        count = 1 if times is None else int(times) + (not gone)
        found += ["" if gone else value] * count
    return found


def described(test: dict[str, Any]) -> Iterator[tuple[str, int, State]]:
    """Yield the run, the sample and the state of each rank whose state and health are both told."""
    ranks: dict[tuple[str, ...], dict[str, dict[str, list[str]]]] = {}
    names = {
        "ampwatch_run_state": "state",
        "ampwatch_run_health": "health",
        "ampwatch_root_info": "severity",
    }
    for one in test.get("input_series", ()):
        name, _, text = one["series"].partition("{")
        if name in names:
            labels = dict(_LABEL.findall(text))
            key = tuple(labels.get(k, "") for k in ("job", "instance", "run", "rank"))
            told = ranks.setdefault(key, {}).setdefault(names[name], {})
            said = values(str(one["values"]))
            word = labels.get(names[name], "")
            before = told.get(word, [])
            both = zip(_long(before, said), _long(said, before), strict=True)
            told[word] = [max(pair) for pair in both]
    for key, rows_of in ranks.items():
        for at in range(max(len(row) for rows in rows_of.values() for row in rows.values())):
            now = {name: _now(rows, at) for name, rows in rows_of.items()}
            if now.get("state") and now.get("health"):
                yield key[2], at, (now["state"] or "", now["health"] or "", now.get("severity"))


def _long(row: list[str], other: list[str]) -> list[str]:
    return row + [""] * (len(other) - len(row))


def _now(rows: dict[str, list[str]], at: int) -> str | None:
    return next((name for name, row in rows.items() if at < len(row) and row[at] == "1"), None)


def test_a_rank_is_broken_only_when_it_is_over_and_failing_only_while_it_runs() -> None:
    can = producible()

    assert {state for state, health, _ in can if health == "broken"} == {"finished"}
    assert {state for state, health, _ in can if health == "failing"} == {"running"}
    assert ("failed", "failed", "critical") in can


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.name)
def test_runs_of_the_tests_are_in_states_that_a_daemon_describes(file: Path) -> None:
    can = producible()
    # A test that leaves out the finding is about a finding that was not exported yet.
    can |= {(state, health, None) for state, health, _ in can}

    wrong = {
        (test.get("name"), run, state)
        for test in load(file)["tests"]
        for run, _, state in described(test)
        if state not in can
    }

    assert not wrong
