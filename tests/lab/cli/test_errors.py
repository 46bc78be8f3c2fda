"""``ampwatch lab errors`` on a real training in a process of its own, and ``ampwatch lab diff``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from ampwatch.cli import main
from ampwatch.lab.tape.rows import RowKind
from tests.host.daemon.parts import eventually
from tests.workshop.nursery import Nursery, Program
from tests.workshop.tapes import HEAD, row, step, write_tape

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


def test_two_runs_that_are_the_same_end_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verdict says so."""
    a, b = (write_tape(tmp_path / f"{name}.tape", [step(0), step(1)]) for name in "ab")

    assert main(["diff", str(a), str(b)]) == 0
    assert "the same: no sum of any tensor differs" in capsys.readouterr().out


@pytest.mark.each_commit
def test_two_runs_that_part_end_with_3_and_name_the_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An op that makes another number of the same inputs, in step 1."""
    a = write_tape(tmp_path / "a.tape", [step(0), step(1)])
    b = write_tape(tmp_path / "b.tape", [step(0), step(1, 1.01)])

    assert main(["diff", str(a), str(b)]) == 3
    assert "op addmm in first, forward of step 1" in capsys.readouterr().out

    assert main(["diff", str(a), str(b), "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    first = document["departures"][0]
    assert document["verdict"] == "differ"
    assert (first["step"], first["module"], first["name"]) == (1, "first", "addmm")
    assert first["distance"] == pytest.approx(0.01 / 1.01)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            [replace(step(0), rows=[row(RowKind.WEIGHT, "first.weight", shape=[4, 8])])],
            "two runs of one model",
        ),
        ([replace(step(0), rows=[row(RowKind.WEIGHT, "other.weight")])], "two runs of one model"),
        ([], "with a recorded step"),
    ],
    ids=["shape", "names", "empty"],
)
def test_what_cannot_be_compared_is_a_sentence(
    other: list[object], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Expected, given, and what to do; exit status 1."""
    a = write_tape(tmp_path / "a.tape", [step(0)])
    b = write_tape(tmp_path / "b.tape", other)  # type: ignore[arg-type]

    assert main(["diff", str(a), str(b)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("ampwatch: expected")
    assert words in said


def test_ranks_of_other_numbers_are_compared_by_gradients_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One process against eight: outputs are of other batches, which is said and is no difference."""
    a = write_tape(tmp_path / "a.tape", [step(0)])
    b = write_tape(tmp_path / "b.tape", [step(0, 2.0)], replace(HEAD, world_size=8))

    assert main(["diff", str(a), str(b)]) == 0
    assert "A has 1 ranks and B 8" in " ".join(capsys.readouterr().out.split())
