"""`ampwatch errors`, as a user runs it, on a real training in a process of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ampwatch.cli import main
from tests.host.daemon.parts import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.workshop.nursery import Nursery, Program

TRAINING = """
import sys, time
from pathlib import Path
import torch
import ampwatch
from ampwatch.training import outlet
from ampwatch.training.launcher import DaemonStatus
from tests.training.replay.small_models import MODELS, batch

outlet.ensure_daemon = lambda _settings: DaemonStatus("", "unavailable")  # a ring, and nobody who reads it
stop, replay = Path(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)
model = MODELS["mixer"]()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
with ampwatch.monitor(model, scaler, optimizer=optimizer, run="mix", replay=replay):
    print("on", flush=True)
    while not stop.exists():
        with torch.autocast("cpu", dtype=torch.float16):
            loss, _ = model(*batch("mixer"))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        time.sleep(1e-3)
"""


@pytest.fixture
def training(
    request: pytest.FixtureRequest, nursery: Nursery, own_places: Path
) -> Iterator[Program]:
    """A training that goes on until the test has ended; its setting `replay` is the parameter."""
    stop = own_places / "stop"
    program = nursery.start(TRAINING, str(stop), getattr(request, "param", "on"))
    eventually(lambda: program.stdout or not program.runs, "the training", 120)
    assert program.runs, program.stderr
    yield program
    stop.touch()
    assert program.wait() == 0


@pytest.mark.nightly
def test_a_running_training_says_where_its_error_begins(
    training: Program, own_places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a table and as JSON, with the training going on and nothing left beside its ring."""
    assert main(["errors", "--run", "mix", "--lines", "4"]) == 0
    table = capsys.readouterr().out
    assert "autocast to float16" in table
    assert "Errors of ops in forward, the largest effect first (4 of" in table
    assert "Errors of ops in backward" in table

    assert main(["errors", "--json"]) == 0
    budget = json.loads(capsys.readouterr().out)
    assert budget["target"] == "loss"
    assert 0.5 < budget["explained"] / budget["error"] < 2.0
    assert {"module", "op", "born", "contribution", "bits"} <= budget["rows"][0].keys()
    assert budget["step"] > 0

    assert training.runs
    assert [p.suffix for p in (own_places / "rings").iterdir()] == [".ring"]


@pytest.mark.parametrize("training", ["off"], indirect=True)
@pytest.mark.usefixtures("training")
def test_a_training_that_cannot_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """In a sentence, with status 1."""
    assert main(["errors"]) == 1
    assert 'no error budget: calls are not kept with the setting replay="off"' in (
        capsys.readouterr().err
    )
