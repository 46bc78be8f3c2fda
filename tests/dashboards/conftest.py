"""A real Prometheus with the history of a made-up training, for all tests that ask one."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from tests.dashboards.made_up_history import openmetrics
from tests.integration.prometheus import Prometheus, prometheus
from tests.services import require

if TYPE_CHECKING:
    from collections.abc import Iterator

RANKS = 24
"""More than any panel may name."""


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, float]]:
    """A Prometheus that has scraped the made-up run, and the time of its newest sample."""
    directory, now = tmp_path_factory.mktemp("history"), float(int(time.time()))
    file = directory / "history.txt"
    file.write_text(openmetrics(RANKS, now), encoding="utf-8")
    command = [require("promtool"), "tsdb", "create-blocks-from", "openmetrics"]
    subprocess.run([*command, str(file), str(directory / "data")], check=True, capture_output=True)
    with prometheus(directory, "") as server:
        yield server, now
