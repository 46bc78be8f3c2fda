"""The whole spine with real parts: a training, the daemon it starts, and a Prometheus."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from ampwatch.wire.rendezvous.token import TOKEN_FILE
from tests.host.daemon.parts import ROOT, Place, eventually
from tests.integration.prometheus import free_port
from tests.integration.prometheus import prometheus as run_prometheus
from tests.services import require

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.nightly, pytest.mark.services]

TRAINING = """
import sys, time
from pathlib import Path
import torch
import ampwatch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
watch = ampwatch.monitor(model, scaler, run="spine")
print(watch.url, flush=True)
stop, poison = Path(sys.argv[1]) / "stop", Path(sys.argv[1]) / "poison"
end = time.monotonic() + 250
while not stop.exists() and time.monotonic() < end:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.randn(16, 8)).float().square().mean()
    if poison.exists():
        loss = loss * float("inf")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    time.sleep(0.02)
"""

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


@contextmanager
def _training(place: Place, directory: Path) -> Iterator[str]:
    environment = place.environment | {
        "AMPWATCH_PORT": str(free_port()),
        "AMPWATCH_GRACE_SECONDS": "8",
        "AMPWATCH_IDLE_EXIT_SECONDS": "1",
        "OMP_NUM_THREADS": "1",
    }
    with subprocess.Popen(
        [sys.executable, "-c", TRAINING, str(directory)],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            (directory / "stop").touch()
            process.wait(60)


def test_one_line_in_a_training_is_scraped_by_a_real_prometheus(tmp_path: Path) -> None:
    """Scale, steps and skips of a real training, healthy and then collapsing, to the end."""
    require("prometheus")
    place = Place(tmp_path)
    with (
        _training(place, tmp_path) as url,
        run_prometheus(
            tmp_path, CONFIG.format(url=url, token=place.runtime / TOKEN_FILE)
        ) as prometheus,
    ):
        healthy = eventually(
            lambda: prometheus.value('ampwatch_loss_scale{run="spine",rank="0"}'), "a scrape"
        )
        steps = prometheus.value('ampwatch_optimizer_steps_total{run="spine"}')
        measured = eventually(
            lambda: prometheus.value('ampwatch_gradient_elements_total{run="spine"} > 0'),
            "gradients are measured",
        )
        median = prometheus.value(
            "histogram_quantile(0.5, sum by (le) (ampwatch_gradient_magnitude_bucket))"
        )
        window = prometheus.value("ampwatch_loss_scale_window_high >= ampwatch_loss_scale")
        skipped_at_first = prometheus.query("ampwatch_optimizer_steps_skipped_total")
        (tmp_path / "poison").touch()
        fallen = eventually(
            lambda: (prometheus.value("ampwatch_loss_scale") or 1.0) < 1.0, "the scale falls"
        )
        broken = prometheus.value(
            'sum(ampwatch_module_gradient_nonfinite_elements_total{module="(root)"})'
        )
        storm = eventually(
            lambda: prometheus.value('ampwatch_optimizer_steps_skipped_total{class="storm"} > 10'),
            "a storm of more than ten skips",
        )
        finding = prometheus.query('ampwatch_findings{kind="scale_collapse"}')
        state = prometheus.query('ampwatch_run_state{state="running"} == 1')
        (tmp_path / "stop").touch()
        # Not after the process is gone: on a busy machine that may outlast the grace time.
        finished = eventually(
            lambda: prometheus.query('ampwatch_run_state{state="finished"} == 1'), "the end"
        )
        eventually(lambda: place.info() is None, "the daemon that was started ends by itself")

    assert healthy == 1024.0
    assert steps is not None
    assert steps > 0
    assert {s["metric"]["class"]: s["value"][1] for s in skipped_at_first} == {
        "calibrating": "0",
        "probe": "0",
        "unprovoked": "0",
        "storm": "0",
    }
    assert measured is not None
    assert measured % 9 == 0  # eight weights and a bias at a time
    assert median is not None
    assert 1e-6 < median < 10.0
    assert window is not None
    assert broken is not None
    assert broken >= 9
    assert fallen
    assert storm
    assert finding[0]["metric"]["severity"] == "critical"
    assert state[0]["metric"]["run"] == "spine"
    assert finished[0]["metric"]["run"] == "spine"
    assert list(place.rings.rglob("*.ring")) == []
