"""Two ranks of one run, started by torchrun, with gradients that are really averaged."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING

import pytest

from ampwatch.wire.rendezvous.token import read_token
from tests.host.daemon.parts import ROOT, Place, eventually

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.nightly

TRAINING = """
import sys, time
from pathlib import Path
import torch
import torch.distributed as dist
import ampwatch

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
with ampwatch.monitor(model, scaler, run="pair") as watch:
    for step in range(20):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.randn(16, 8)).float().square().mean()
        if step == 10 and dist.get_rank() == 1:
            loss = loss * float("inf")  # one rank; the average carries it to the other
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    Path(sys.argv[1], f"skipped-{dist.get_rank()}").write_text(watch.report())
    stop = Path(sys.argv[1]) / "stop"
    end = time.monotonic() + 200
    while not stop.exists() and time.monotonic() < end:
        time.sleep(0.05)
dist.destroy_process_group()
"""


def test_two_ranks_of_one_run_share_one_daemon_and_are_kept_apart(tmp_path: Path) -> None:
    """Each rank has its ring; the one daemon that they start shows both under one run."""
    place = Place(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nnodes=1",
            "--nproc-per-node=2",
            str(script),
            str(tmp_path),
        ],
        env=place.environment
        | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "AMPWATCH_IDLE_EXIT_SECONDS": "1"}
        | {"AMPWATCH_GRACE_SECONDS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stderr=subprocess.DEVNULL,
    ) as ranks:
        try:
            eventually(lambda: len(list(tmp_path.glob("skipped-*"))) == 2, "two reports", 90)
            info = place.info()
            assert info is not None
            address = f"http://127.0.0.1:{info.port}/metrics"

            def scraped() -> list[str]:
                bearer = {"Authorization": f"Bearer {read_token(place.runtime)}"}
                request = urllib.request.Request(address, headers=bearer)
                with urllib.request.urlopen(request, timeout=5) as answer:
                    lines: list[str] = answer.read().decode().splitlines()
                return sorted(
                    line
                    for line in lines
                    if line.startswith("ampwatch_steps_total") and "20.0" in line
                )

            both = eventually(lambda: len(found := scraped()) == 2 and found, "both ranks")
        finally:
            (tmp_path / "stop").touch()
            ranks.wait(60)
    reports = [(tmp_path / f"skipped-{rank}").read_text() for rank in range(2)]
    eventually(lambda: place.info() is None, "the daemon ends by itself")

    assert both == [f'ampwatch_steps_total{{rank="{rank}",run="pair"}} 20.0' for rank in range(2)]
    assert "1 step skipped: 1 calibrating" in reports[0]
    assert "1 step skipped: 1 unprovoked" in reports[1]  # its own loss was infinite
