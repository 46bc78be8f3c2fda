"""`ampwatch lab plan`, as a user runs it: from a report, and of a real training in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from ampwatch.cli import main
from ampwatch.lab.cli.plan import _have_followed
from ampwatch.wire.blackbox import Box
from ampwatch.wire.blackbox.document import to_json
from ampwatch.wire.records import PlanRecord
from ampwatch.wire.ring import RingReader
from tests.host.daemon.parts import ROOT, eventually
from tests.lab.precision.test_planner import _box, _layer, _tensors
from tests.workshop.nursery import Nursery
from tests.workshop.records import IDENTITY, planned

TRAINING = """
import sys
from pathlib import Path
import torch
import ampwatch
from ampwatch.training import outlet
from ampwatch.training.launcher import DaemonStatus

outlet.ensure_daemon = lambda _settings: DaemonStatus("", "unavailable")  # a ring, and nobody who reads it
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.Linear(64, 16))
optimizer = torch.optim.AdamW(model.parameters())
watch = ampwatch.monitor(model, optimizer=optimizer, run="net", sample_every=1)
step, is_measured = 0, False
while not Path(sys.argv[1]).exists():
    loss = model(torch.randn(64, 64)).square()
    if len(sys.argv) > 2 and Path(sys.argv[2]).exists():  # few samples have all of the gradient
        loss = 64 * (24 * torch.randn(64, 1)).softmax(0) * loss
    loss.mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    for finding in watch.findings:
        print("found", finding.kind, finding.evidence.get("limit_db"), flush=True)
    if is_measured:
        continue
    if all(len(r.operands) > 2 for r in watch.box().layers if r.has_products) and watch.box().layers:
        print("measured", flush=True)
        is_measured = True
"""


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """Return a report with a layer and a last one."""
    path = tmp_path / "gpt.json"
    path.write_text(to_json([_box(_layer(_tensors()))]))
    return path


def test_a_report_gives_a_table_json_and_code(
    report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the limit, the GPU and the formats that are asked for."""
    assert main(["plan", str(report)]) == 0
    table = capsys.readouterr().out
    assert "Precision plan of gpt: the cheapest format of each product that keeps 20 dB" in table
    assert "float8_e4m3fn" in table

    assert main(["plan", str(report), "--json", "--gpu", "b200", "--limit", "5"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["gpu"], plan["limit_db"]) == ("B200", 5.0)
    assert plan["layers"][0]["products"][0]["formats"] == ["mxfp4", "mxfp4"]

    arguments = ["--formats", "float16, bfloat16,float32", "--limit", "60"]
    assert main(["plan", str(report), *arguments]) == 0
    assert "forward     float16 " in capsys.readouterr().out


@pytest.mark.nightly
def test_a_running_training_is_planned(
    own_places: Path, nursery: Nursery, capsys: pytest.CaptureFixture[str]
) -> None:
    """With nothing left beside its ring."""
    stop = own_places / "stop"
    program = nursery.start(TRAINING, str(stop))
    eventually(lambda: program.stdout or not program.runs, "the training", 120)
    assert program.stdout == "measured\n", program.stderr
    try:
        assert main(["plan", "--run", "net", "--json"]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert [p.suffix for p in (own_places / "rings").iterdir()] == [".ring"]
    finally:
        stop.touch()
    assert program.wait() == 0, program.stderr
    assert [layer["module"] for layer in plan["layers"]] == ["0", "2", "3"]
    assert plan["layers"][1]["products"][0]["formats"] == ["float8_e4m3fn", "float8_e4m3fn"]
    assert plan["phases"]


@pytest.mark.nightly
def test_a_running_training_follows_the_plan_that_it_was_given(
    own_places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest, with what was asked for; it tells when it leaves it."""
    stop, drifts = own_places / "stop", own_places / "drifts"
    arguments = [sys.executable, "-c", TRAINING, str(stop), str(drifts)]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "measured\n"
        try:
            assert main(["plan", "--run", "net", "--limit", "40"]) == 0
            assert main(["plan", "--run", "net", "--limit", "21", "--gpu", "H100"]) == 0
            assert (
                main(["plan", "--run", "net", "--limit", "30", "--lines", "1", "--no-follow"]) == 0
            )
            said = capsys.readouterr()
            assert said.err == ""
            (ring,) = (own_places / "rings").glob("*.ring")
            reader = RingReader(ring)
            plans = [r for r in reader.poll() if isinstance(r, PlanRecord)]
            reader.close()
            drifts.touch()
            found = next(line for line in process.stdout if line.startswith("found plan_left"))
        finally:
            stop.touch()
            process.stdout.read()
    assert process.returncode == 0
    assert [(r.module, r.limit_db, r.gpu) for r in plans] == [
        (module, limit, gpu)
        for limit, gpu in ((40.0, ""), (21.0, "H100"))
        for module in ("0", "2", "3")
    ]
    assert plans[-1].step > 0
    assert f"  {plans[3].module}  " in said.out
    assert plans[3].formats[0] in said.out
    assert found == "found plan_left 21.0\n"


def test_a_plan_that_cannot_be_followed_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody who only wanted to read it has it; a sentence says that nobody tells when it is left."""
    gone = SimpleNamespace(path=tmp_path / "gone" / "net.ring", identity=IDENTITY)

    _have_followed(cast("RingReader", gone), [planned()], 1.0)

    assert "the training does not follow this plan: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu", "H10"], "did you mean 'H100'"),
        (["--formats", "fp8"], "expected formats of"),
        (["--formats", ","], "at least one format"),
        (["--rank", "7"], "expected a rank that --run and --rank choose"),
    ],
)
def test_bad_arguments_are_explained(
    report: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a sentence, with status 1."""
    assert main(["plan", str(report), *arguments]) == 1
    assert said in capsys.readouterr().err


def test_a_report_without_layers_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was written before any was measured."""
    path = tmp_path / "early.json"
    path.write_text(to_json([Box(IDENTITY)]))

    assert main(["plan", str(path)]) == 1
    assert "no precision plan: no step in which layers are measured" in capsys.readouterr().err
