"""Native histograms, as a real Prometheus asks for them and reads them."""

from __future__ import annotations

import math
import random
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from ampwatch.host.daemon.server import Server
from ampwatch.host.daemon.site import Site
from ampwatch.host.daemon.web_config import WebConfig
from ampwatch.host.fleet import Fleet
from ampwatch.host.fleet.native import NATIVE_SCHEMA
from ampwatch.settings import Settings
from tests.host.daemon.parts import OPEN, eventually
from tests.integration.prometheus import Prometheus, prometheus
from tests.workshop.clocks import START, Clock
from tests.workshop.fleets import put
from tests.workshop.records import identity, step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = [pytest.mark.nightly, pytest.mark.services]

CONFIG = """
global:
  scrape_interval: 200ms
scrape_configs:
  - job_name: ampwatch
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""

DURATIONS = "ampwatch_step_duration_seconds"
WIDTH = 2 ** (1 / 2**NATIVE_SCHEMA)
"""Upper bound of a bucket, in lower bounds."""


@contextmanager
def scraping(directory: Path, fleet: Fleet) -> Iterator[Prometheus]:
    """A Prometheus that asks for native histograms, and a server for it to scrape."""
    server = Server("127.0.0.1", 0, Site(fleet, {}), WebConfig(), frozenset(), OPEN)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        config = CONFIG.format(port=server.server_port)
        flags = ["--enable-feature=native-histograms"]
        with prometheus(directory, config, flags=flags) as running:
            yield running
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def put_steps(fleet: Fleet, first: int, durations: Sequence[float]) -> None:
    """Let a rank end steps that took so long."""
    steps = [step(first + i, duration_s=seconds) for i, seconds in enumerate(durations)]
    put(fleet, "a", identity(), steps)


def exactly(values: Sequence[float], quantile: float) -> float:
    """Return the value that ``quantile`` of all values are not above."""
    return sorted(values)[math.ceil(quantile * len(values)) - 1]


def test_quantiles_are_those_of_the_observations(tmp_path: Path) -> None:
    """Within the width of one bucket, where the classic buckets are 2.5 times as wide as they begin."""
    dice = random.Random(3)
    at_first = [dice.uniform(100.0, 200.0) for _ in range(50)]
    later = [dice.lognormvariate(-2.0, 0.5) for _ in range(1000)]
    fleet = Fleet(Settings(), Clock(START + 5))
    put_steps(fleet, 0, at_first)

    with scraping(tmp_path, fleet) as server:
        eventually(lambda: server.value(f"histogram_count({DURATIONS})") == 50, "a first scrape")
        put_steps(fleet, 50, later)
        eventually(lambda: server.value(f"histogram_count({DURATIONS})") == 1050, "a later one")
        total = server.value(f"histogram_sum({DURATIONS})")
        quantiles = {
            q: server.value(f"histogram_quantile({q}, rate({DURATIONS}[1m]))")
            for q in (0.1, 0.5, 0.9, 0.99)
        }
        below = server.value(f"histogram_fraction(0, 50, {DURATIONS})")

    assert total == pytest.approx(sum(at_first + later))
    for quantile, value in quantiles.items():
        expected = exactly(later, quantile)
        assert value is not None
        assert expected / WIDTH <= value <= expected * WIDTH, quantile
    assert below == pytest.approx(1000 / 1050)
