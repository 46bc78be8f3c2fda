"""A real Prometheus with the history of a made-up training, for all tests that ask one."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.dashboards.odd_runs import openmetrics_of_odd_runs
from tests.integration.prometheus import Prometheus, prometheus
from tests.workshop.history import openmetrics

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
