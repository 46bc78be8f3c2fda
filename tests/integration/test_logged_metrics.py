"""What a logger is handed and what a real Prometheus has of the same training are one number."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ampwatch.state.facts import LOGGED, WHOLE_RUN
from ampwatch.wire.rendezvous.token import TOKEN_FILE
from tests.host.daemon.parts import ROOT, Place, eventually
from tests.integration.prometheus import free_port
from tests.integration.prometheus import prometheus as run_prometheus
from tests.services import require

pytestmark = [pytest.mark.nightly, pytest.mark.services]

CONFIG = """
global:
  scrape_interval: 200ms
scrape_configs:
  - job_name: ampwatch
    authorization: {{type: Bearer, credentials_file: {token}}}
    http_sd_configs:
      - url: {url}sd
        authorization: {{type: Bearer, credentials_file: {token}}}
        refresh_interval: 1s
"""

TRAINING = """
import json, sys, time
import torch
import ampwatch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**6, growth_interval=10)
watch = ampwatch.monitor(model, scaler, run="logged", level="deep")
batches = torch.utils.data.DataLoader(torch.randn(960, 8), batch_size=16)
logged = {}
for step, batch in enumerate(batches):
    watch.batch(samples=16, tokens=128)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(batch).float().square().mean()
    loss = loss * 1e-7 * (float("inf") if step in (20, 21, 40) else 1.0)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    time.sleep(0.02)  # ranges are recorded ten times a second
    now = watch.metrics()
    logged[now["amp/step"]] = now
watch.close()
last = watch.summary()
logged[last["amp/step"]] = last
print(json.dumps([watch.url, last, list(logged.values())]), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A place whose daemon ends with the test: it would wait for 10 minutes for somebody to look."""
    place = Place(tmp_path)
    yield place
    if (info := place.info()) is not None:
        with suppress(ProcessLookupError):
            os.kill(info.pid, signal.SIGTERM)


def test_every_number_is_that_of_prometheus(place: Place, tmp_path: Path) -> None:
    """At the end of a run with skips, growths, flushed gradients and findings; all that have a query.

    Of what Prometheus has in a histogram it is the sum of all that was handed out, step by step.
    """
    require("prometheus")
    environment = place.environment | {
        "AMPWATCH_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    with subprocess.Popen(
        [sys.executable, "-c", TRAINING],
        env=environment,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        url, summary, logged = json.loads(process.stdout.readline())
        config = CONFIG.format(url=url, token=place.runtime / TOKEN_FILE)
        with run_prometheus(tmp_path, config) as prometheus:
            eventually(lambda: prometheus.value("ampwatch_steps_total == 60"), "the last step")
            rows = {row.key: row.promql for row in (*LOGGED, *WHOLE_RUN) if not row.is_sum}
            values = {key: prometheus.value(promql) for key, promql in rows.items()}
            sums = {row.key: row.promql for row in LOGGED if row.is_sum}
            summed = {key: prometheus.value(promql) for key, promql in sums.items()}
            info = place.info()
        process.stdin.close()
        process.wait(60)

    assert info is not None
    known = {key: value for key, value in summary.items() if key in rows}
    assert known.keys() == rows.keys()
    assert known["amp/underflow_share"] > 0.0
    assert known["amp/skipped_steps"] == 3.0
    assert values == pytest.approx(known, rel=1e-6)  # a time since 1970 has no more digits
    assert len(logged) == 60
    totals = {key: math.fsum(now.get(key, 0.0) for now in logged) for key in sums}
    assert all(totals.values())
    assert summed == pytest.approx(totals, rel=1e-5)  # phases are of single precision in the ring
