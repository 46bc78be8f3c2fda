"""A training that is killed at any moment leaves a report that says what happened until then."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from ampwatch.host.daemon.remains import find_remains
from ampwatch.report.report import render_boxes
from ampwatch.settings import Settings
from ampwatch.wire.records import RunState
from tests.host.daemon.parts import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KILLS = 6

# The children are forked from a process that has everything loaded, so that one takes no seconds to
# begin. They write a ring and reports as any training does; every eighth step is skipped.
TRAININGS = """
import os, sys, torch, ampwatch
import torch._dynamo, torch.profiler, ampwatch.training.session  # what a first optimizer and monitor import
from ampwatch.training import outlet
from ampwatch.training.launcher import DaemonStatus
outlet.ensure_daemon = lambda _: DaemonStatus("", "unavailable", "")  # nobody is there to help
torch.set_num_threads(1)
for line in sys.stdin:
    if pid := os.fork():
        os.waitpid(pid, 0)
        print("gone", flush=True)
        continue
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
    ampwatch.monitor(model, scaler, run=line.strip())
    print(os.getpid(), flush=True)
    for step in range(10**9):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.ones(4, 8)).float().mean()
        scaler.scale(loss * (float("inf") if step % 8 > 5 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        if step == 3:
            print("four steps", flush=True)
"""


@pytest.fixture
def trainings(own_places: Path) -> Iterator[subprocess.Popen[str]]:
    assert own_places
    process = subprocess.Popen(
        [sys.executable, "-c", TRAININGS],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def test_a_kill_at_any_moment_leaves_what_was_until_then(
    trainings: subprocess.Popen[str],
) -> None:
    """After at least four steps, in the middle of whatever is written just then."""
    moments = random.Random(0)
    assert trainings.stdin is not None
    assert trainings.stdout is not None
    for kill in range(KILLS):
        trainings.stdin.write(f"killed-{kill}\n")
        trainings.stdin.flush()
        pid = int(trainings.stdout.readline())
        assert trainings.stdout.readline() == "four steps\n"
        # Uneven on purpose; also the moment of the first finding and of its report is among them.
        time.sleep(moments.uniform(0.0, 0.12))
        os.kill(pid, signal.SIGKILL)
        assert trainings.stdout.readline() == "gone\n"

    for kill in range(KILLS):
        (box,) = find_remains(Settings.resolve({}), run=f"killed-{kill}").boxes
        assert box.state is RunState.FAILED
        steps = [step.step for step in box.steps]
        assert len(steps) >= 4
        assert steps == list(range(steps[0], steps[0] + len(steps)))
        assert f"killed-{kill}" in render_boxes([box])
