"""A real Prometheus with the history of a made-up training, and with runs as they seldom are, for all tests that ask one."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.integration.prometheus import Prometheus, prometheus
from tests.workshop.history import openmetrics

MINUTES = 20
ENDED_SECONDS = 1500
"""How long ago the run ``done`` has ended."""

UP, DOWN = "node-0:10917", "node-9:10917"

_STATES = ("running", "finished", "failed", "stale")


def openmetrics_of_odd_runs(now: float) -> str:
    """A sample a minute: what rises does so from 0, what is gone has none in the last ten minutes."""
    lines = []
    for minute in range(MINUTES + 1):
        at = now - 60 * (MINUTES - minute)
        for series, value in _scrape(minute, now).items():
            name, _, labels = series.partition("{")
            lines.append(f'{name}{{job="ampwatch",{labels} {value!r} {at:.3f}')
    return "\n".join([*lines, "# EOF\n"])


def _scrape(minute: int, now: float) -> dict[str, float]:
    """Return the series of a minute, with ``now`` at the end."""
    passed, early = minute / MINUTES, minute <= MINUTES // 2
    found: dict[str, float] = {}

    def rank(run: str, number: int, state: str, machine: str = UP, world: int = 1) -> str:
        of = f'{{instance="{machine}",run="{run}",rank="{number}"'
        for name in _STATES:
            found[f'ampwatch_run_state{of},state="{name}"}}'] = float(name == state)
        found[f'ampwatch_run_info{of},world_size="{world}"}}'] = 1.0
        found[f"ampwatch_last_report_timestamp_seconds{of}}}"] = now
        return of

    done = rank("done", 0, "finished")
    found[f"ampwatch_last_report_timestamp_seconds{done}}}"] = now - ENDED_SECONDS
    found[f"ampwatch_loss_scale{done}}}"] = 65536.0
    for what, each in ("", 1000.0), ("underflow_", 10.0):
        sampled = each * min(minute, MINUTES // 2)
        found[f"ampwatch_gradient_{what}elements_total{done}}}"] = sampled
    for number in range(8):
        rank("wide", number, "running", world=8)
    rank("twins", 0, "running", UP)
    rank("twins", 0, "running", "node-1:10917")
    if early:
        gone = rank("gone", 0, "running")
        found[f"ampwatch_loss_scale{gone}}}"] = 0.5
        found[f"ampwatch_steps_total{gone}}}"] = 100.0 * passed
        found[f'ampwatch_build_info{{instance="{DOWN}",version="0.1.0"}}'] = 1.0
    found[f'up{{instance="{DOWN}"}}'] = float(early)
    return found


RANKS = 24
"""More than any panel may name."""


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, float]]:
    """A Prometheus that has scraped the made-up run, and the time of its newest sample."""
    now = float(int(time.time()))
    with prometheus(tmp_path_factory.mktemp("history"), "", openmetrics(RANKS, now)) as server:
        yield server, now


@pytest.fixture(scope="module")
def odd_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, float]]:
    """A Prometheus that has scraped what seldom happens, and the time of its newest sample."""
    now = float(int(time.time()))
    with prometheus(tmp_path_factory.mktemp("odd"), "", openmetrics_of_odd_runs(now)) as server:
        yield server, now
