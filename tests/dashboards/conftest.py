"""A real Prometheus with the history of a made-up training, for all tests that ask one."""

from __future__ import annotations

import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.dashboards.odd_runs import openmetrics_of_odd_runs
from tests.integration.prometheus import Prometheus, prometheus
from tests.services import require
from tests.workshop.history import openmetrics

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RANKS = 24
"""More than any panel may name."""


@contextmanager
def backfilled(directory: Path, text: str) -> Iterator[Prometheus]:
    """A Prometheus that has ``text``, in OpenMetrics with times, behind it."""
    file = directory / "history.txt"
    file.write_text(text, encoding="utf-8")
    command = [require("promtool"), "tsdb", "create-blocks-from", "openmetrics"]
    subprocess.run([*command, str(file), str(directory / "data")], check=True, capture_output=True)
    with prometheus(directory, "") as server:
        yield server


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, float]]:
    """A Prometheus that has scraped the made-up run, and the time of its newest sample."""
    now = float(int(time.time()))
    with backfilled(tmp_path_factory.mktemp("history"), openmetrics(RANKS, now)) as server:
        yield server, now


@pytest.fixture(scope="module")
def odd_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, float]]:
    """A Prometheus that has scraped what seldom happens, and the time of its newest sample."""
    now = float(int(time.time()))
    with backfilled(tmp_path_factory.mktemp("odd"), openmetrics_of_odd_runs(now)) as server:
        yield server, now
