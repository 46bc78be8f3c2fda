"""Each example is run as a user runs it: its mistake is named, the remedy silences it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = Path(__file__).parents[2] / "examples"

OF_THE_MACHINE = {"cpu_isa_missing"}
"""Depends on the CPU that the tests run on."""


class Mistake(NamedTuple):
    """Mistake of an example.

    Attributes:
        command: The example, at a size for tests.
        kind: Kind of the finding that names it.
        places: Where it may say that it is.
        op: The op it names.
        phase: The phase it names.
    """

    command: str
    kind: str
    places: set[str]
    op: str = ""
    phase: str = "backward"


MISTAKES = (
    Mistake("resnet_fine_tune --steps 8 --pretraining 10", "fp16_without_scaler", {"api"}),
    Mistake("backward_in_autocast --steps 12", "backward_under_autocast", {"api"}),
    Mistake(
        "bce_loss --steps 12", "api_error", {"", "5", "loss"}, "binary_cross_entropy", "forward"
    ),
    Mistake("bf16_checkpoint --steps 12", "forward_overflow", {"blocks.0.wo"}, "mm", "forward"),
    Mistake(
        "cifar_efficientnet --steps 40",
        "backward_nonfinite_any_scale",
        {"param:8.weight", "param:6.project.0.weight"},
        "pow",
    ),
    Mistake("mnist_cnn --steps 4 --channels 420", "dims_unaligned", {"3"}, "convolution", "config"),
)

HEALTHY = (
    "sgd --steps 40",
    "accumulation --steps 20",
    "gpt --steps 20",
    "mnist_cnn --steps 4 --channels 1000",
    "efficientnet --steps 10",
    *(f"{mistake.command} --fixed" for mistake in MISTAKES),
)

of_each_mistake = pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.command)


class Run(NamedTuple):
    """Output of an example.

    Attributes:
        output: What it has printed.
        findings: What it has found, apart from what depends on the machine.
    """

    output: str
    findings: list[dict[str, Any]]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Return what runs an example on the CPU, each step sampled, however slow this machine is.

    Once for all tests that ask for the same, in whichever worker of pytest-xdist they are.
    """
    directory = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        directory = directory.parent

    def run(command: str) -> Run:
        kept = directory / f"example {command}.json"
        with (directory / f"example {command}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                kept.write_text(json.dumps(_run(command)))
        return Run(*json.loads(kept.read_text()))

    return run


def _run(command: str) -> Run:
    name, *options = command.split()
    with TemporaryDirectory() as directory:
        file = Path(directory) / "findings.json"
        done = subprocess.run(
            [sys.executable, EXAMPLES / f"{name}.py", *options, "--device", "cpu", "--json", file],
            env=os.environ
            | {
                "AMPWATCH_SAMPLE_EVERY": "1",
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(EXAMPLES.parent),
                "PYTHONWARNINGS": "error",
            },
            capture_output=True,
            check=False,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        findings = json.loads(file.read_text())
    return Run(done.stdout, [f for f in findings if f["kind"] not in OF_THE_MACHINE])


@of_each_mistake
def test_the_mistake_is_named(mistake: Mistake, run: Callable[[str], Run]) -> None:
    """One root: the kind, a place that makes sense, the op and the phase; the report says it."""
    output, findings = run(mistake.command)

    roots = [f for f in findings if f["root"]]
    assert [(f["kind"], f["op"], f["phase"]) for f in roots] == [
        (mistake.kind, mistake.op, mistake.phase)
    ]
    assert roots[0]["where"] in mistake.places
    assert {f["caused_by"].partition("@")[0] for f in findings} <= {"", mistake.kind}
    report = output[output.rindex("ampwatch report: run") :]
    assert mistake.kind in report
    assert "What to change: " in report


@pytest.mark.parametrize("command", HEALTHY)
def test_what_is_done_right_is_left_alone(command: str, run: Callable[[str], Run]) -> None:
    """Nothing is found, not even an info."""
    output, findings = run(command)

    assert [(f["kind"], f["where"], f["summary"]) for f in findings] == []
    assert "ampwatch report: run" in output


def test_one_precision_of_three_fails_and_its_remedy_makes_them_alike(
    run: Callable[[str], Run],
) -> None:
    """float32 and bfloat16 learn alike all the time, float16 only with the remedy."""
    failing, healed = (
        _last_losses(run(f"cifar_efficientnet --steps 40{option}").output)
        for option in ("", " --fixed")
    )

    assert failing["bfloat16"] == pytest.approx(failing["float32"], rel=0.1)
    assert failing["float16"] > 1.15 * failing["float32"]
    assert healed["float16"] == pytest.approx(healed["float32"], rel=0.1)


def _last_losses(output: str) -> dict[str, float]:
    return {
        dtype: float(loss)
        for dtype, loss in re.findall(
            r"^(b?float\d+): loss .*, ([\d.]+) in the last", output, re.MULTILINE
        )
    }


def test_the_efficientnet_reads_cifar_10_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the binary version: a label, then all red, green and blue pixels. A folder without it is refused."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    cifar = runpy.run_path(str(EXAMPLES / "cifar_efficientnet.py"))["cifar"]
    with pytest.raises(SystemExit, match="data_batch_1"):
        cifar(tmp_path)

    for file, label in (("data_batch_1.bin", 3), ("data_batch_2.bin", 7)):
        row = bytes([label, *[255] * 1024, *[0] * 1024, *range(256), *[51] * 768])
        (tmp_path / file).write_bytes(row)
    images, labels = cifar(tmp_path)

    assert labels.tolist() == [3, 7]
    assert images.shape == (2, 3, 32, 32)
    assert [images[0, colour, 0, 0].item() for colour in range(3)] == [1.0, -1.0, -1.0]
    assert images[1, 2, 1, 0].item() == pytest.approx(32 / 127.5 - 1)


def test_the_efficientnet_says_what_came_of_each_precision(run: Callable[[str], Run]) -> None:
    """Per precision: time, accuracy, a verdict against float32, and what the FLOPs ran in."""
    output, _ = run("efficientnet --steps 10")

    for dtype in ("float32", "float16", "bfloat16"):
        _, _, said = output.partition(f"\n{dtype}: ") if dtype != "float32" else ("", "", output)
        heading, switches, verdict = said.splitlines()[:3]
        assert " ms a step, accuracy " in heading
        assert switches == "  switches: none"
        assert ("times as fast as float32" in verdict) == (dtype != "float32")
        _, _, table = output.partition(f"Ops of {dtype}:")
        assert table.splitlines()[2] == f"FLOPs: 100 % in {dtype}."


def test_every_example_is_here_and_in_the_readme() -> None:
    """An example that nobody runs rots."""
    names = {path.stem for path in EXAMPLES.glob("*.py")} - {"shared"}

    assert {command.split()[0] for command in HEALTHY} == names
    readme = (EXAMPLES / "README.md").read_text()
    assert [name for name in sorted(names) if f"`{name}.py`" not in readme] == []
