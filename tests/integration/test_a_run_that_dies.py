"""Real trainings that end in every bad way, and what `ampwatch report` says of them after that."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from ampwatch.host.daemon.remains import find_remains
from ampwatch.settings import Settings
from ampwatch.wire.blackbox import Box, files
from ampwatch.wire.records import RunState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.workshop.nursery import Nursery, Program

TRAINING = """
import os, signal, sys
import torch
import ampwatch
from ampwatch.training import outlet
from ampwatch.training.launcher import DaemonStatus
from ampwatch.numerics.units.ops import HALF_DTYPES
from ampwatch.training.model import machine
from tests.trainings import build

machine.cpu_dtypes = lambda _=None: HALF_DTYPES  # findings must not depend on the machine
outlet.ensure_daemon = lambda _: DaemonStatus("", "unavailable", "")  # nobody is there to help
torch.set_num_threads(1)
run = build("fp16-foreach")
if "healthy" in sys.argv:
    run.poison = ()
watch = ampwatch.monitor(run.models, run.scaler, run="doomed")
run.loop()
def the_end():
    if "raise" in sys.argv:
        raise ValueError("the user's own")
    if "exit" in sys.argv:
        os._exit(3)
    if "kill" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    if "hang" in sys.argv:
        print("hanging", flush=True)
        signal.pause()
the_end()
"""


@pytest.fixture
def train(nursery: Nursery) -> Callable[..., Program]:
    """Train in a process of its own, to its end."""

    def train(*how: str) -> Program:
        program = nursery.start(TRAINING, *how)
        program.wait()
        return program

    return train


def on_disk(own_places: Path) -> list[Box]:
    runs = own_places / "state" / "ampwatch" / "runs"
    return [box for path in files.paths(runs) for box in files.read(path)]


def told(**changes: object) -> Box:
    (box,) = find_remains(Settings.resolve(changes)).boxes
    return box


def test_by_an_exception(train: Callable[..., Program], own_places: Path) -> None:
    """It reaches the user unchanged; the report has it beside the finding."""
    ended = train("raise")

    assert ended.wait() == 1
    assert ended.stderr.endswith("ValueError: the user's own\n")
    (box,) = on_disk(own_places)
    assert (box.state, box.reason) == (RunState.FAILED, "ValueError: the user's own")
    assert "in the_end" in box.traceback
    assert [f.kind for f in box.findings] == ["scale_collapse"]
    assert box.settings["level"] == "standard"
    assert box.facts["autocast_dtype"] == "float16"
    assert len(box.steps) == 12
    assert any(r.histogram.numel for r in box.ranges)
    assert box.sampling is not None


@pytest.mark.parametrize(("how", "status"), [("kill", -signal.SIGKILL), ("exit", 3)])
def test_without_a_word(
    train: Callable[..., Program], own_places: Path, how: str, status: int
) -> None:
    """The report written at the finding is on disk, the rest in the ring."""
    assert train(how).wait() == status

    (written,) = on_disk(own_places)
    assert written.state is RunState.RUNNING
    assert [f.kind for f in written.findings] == ["scale_collapse"]
    box = told()
    assert (box.state, box.written_by) == (RunState.FAILED, "report")
    assert "killed, out of memory or crashed" in box.reason
    assert len(box.steps) == 12
    assert box.settings == written.settings != {}
    assert box.findings[0].count > written.findings[0].count


def test_healthy_but_killed(train: Callable[..., Program], own_places: Path) -> None:
    """Nothing was found, so nothing is on disk; the ring tells."""
    train("kill", "healthy")

    assert not on_disk(own_places)
    box = told()
    assert (box.state, box.findings, len(box.steps)) == (RunState.FAILED, [], 12)


def test_healthy_to_the_end(train: Callable[..., Program], own_places: Path) -> None:
    """It leaves nothing at all."""
    assert train("healthy").wait() == 0

    assert not (own_places / "state").exists()
    assert not find_remains(Settings.resolve()).boxes
