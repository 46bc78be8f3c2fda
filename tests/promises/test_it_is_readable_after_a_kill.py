"""A training that is killed at any moment leaves a report that says what happened until then."""

from __future__ import annotations

import random
import signal
import time

import pytest

from ampwatch.host.daemon.leftovers import find_leftovers
from ampwatch.report.report import render_boxes
from ampwatch.settings import Settings
from ampwatch.wire.records import RunState
from tests.host.daemon.parts import eventually
from tests.workshop.nursery import Nursery

KILLS = 6

# It writes a ring and reports as any training does; every eighth step is skipped. At a step that is named
# it is killed between two calls of the scaler.
TRAINING = """
import itertools, os, signal, sys, torch, ampwatch
from ampwatch.training import outlet
from ampwatch.training.launcher import DaemonStatus
outlet.ensure_daemon = lambda _: DaemonStatus("", "unavailable", "")  # nobody is there to help
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
ampwatch.monitor(model, scaler, run=sys.argv[1])
for step in itertools.count():
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.ones(4, 8)).float().mean()
    scaler.scale(loss * (float("inf") if step % 8 > 5 else 1.0)).backward()
    scaler.step(optimizer)
    if str(step) in sys.argv[2:]:
        os.kill(os.getpid(), signal.SIGKILL)
    scaler.update()
    if step == 6:
        print("seven steps", flush=True)
"""


def steps_left(run: str) -> list[int]:
    """Return the steps in what is left of a run, which is readable and ends as failed."""
    (box,) = find_leftovers(Settings.resolve({}), run=run).boxes
    assert box.state is RunState.FAILED
    assert run in render_boxes([box])
    return [step.step for step in box.steps]


def test_a_kill_in_the_middle_of_a_step_leaves_the_steps_before(nursery: Nursery) -> None:
    """Of which one was skipped, so that each is written at once."""
    program = nursery.start(TRAINING, "killed", "7")

    assert program.wait() == -signal.SIGKILL
    assert steps_left("killed") == list(range(7))


@pytest.mark.nightly
def test_a_kill_at_any_moment_leaves_what_was_until_then(nursery: Nursery) -> None:
    """After seven steps, of which the last was skipped, in the middle of whatever is written just then."""
    moments = random.Random(0)
    for kill in range(KILLS):
        program = nursery.start(TRAINING, f"killed-{kill}")
        eventually(lambda started=program: started.stdout, "seven steps")
        # Uneven on purpose; also the moment of the first finding and of its report is among them.
        time.sleep(moments.uniform(0.0, 0.12))
        program.kill()
        assert program.wait() == -signal.SIGKILL

    for kill in range(KILLS):
        steps = steps_left(f"killed-{kill}")
        assert len(steps) >= 7
        assert steps == list(range(steps[0], steps[0] + len(steps)))
