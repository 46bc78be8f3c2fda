"""Each example is run as a user runs it: its mistake is named, the remedy silences it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.workshop.examples import ExampleRun

EXAMPLES = Path(__file__).parents[2] / "examples"


class Mistake(NamedTuple):
    """Mistake of an example.

    Attributes:
        command: The example; those of the tutorial as a reader runs them, others at a size for tests.
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
    Mistake("resnet_fine_tune", "fp16_without_scaler", {"api"}),
    Mistake("backward_in_autocast --steps 12", "backward_under_autocast", {"api"}),
    Mistake("bce_loss", "api_error", {"", "5", "loss"}, "binary_cross_entropy", "forward"),
    Mistake("bf16_checkpoint", "forward_overflow", {"blocks.0.wo"}, "mm", "forward"),
    Mistake(
        "cifar_efficientnet",
        "backward_nonfinite_any_scale",
        {"param:8.weight", "param:6.project.0.weight"},
        "pow",
    ),
    Mistake("mnist_cnn", "dims_unaligned", {"3"}, "convolution", "config"),
)

HEALTHY = (
    "sgd --steps 40",
    "accumulation --steps 20",
    "gpt --steps 6",
    "mnist_cnn --steps 4 --channels 1000",
    "efficientnet --steps 10",
    *(f"{mistake.command} --fixed" for mistake in MISTAKES),
)

ALWAYS = ("bce_loss", "sgd --steps 40")
"""A short example with a mistake and a short one without, which are run at each commit; the others train for a minute."""


def at_night(command: str, of: object) -> Any:
    """Leave an example to the night, unless it is always run."""
    marks = () if command in ALWAYS else (pytest.mark.nightly,)
    return pytest.param(of, marks=marks, id=command)


of_each_mistake = pytest.mark.parametrize("mistake", [at_night(m.command, m) for m in MISTAKES])


@pytest.mark.rotating
@of_each_mistake
def test_the_mistake_is_named(mistake: Mistake, run_example: Callable[[str], ExampleRun]) -> None:
    """One root: the kind, a place that makes sense, the op and the phase; the report says it."""
    output, _, findings = run_example(mistake.command)

    roots = [f for f in findings if f["root"]]
    assert [(f["kind"], f["op"], f["phase"]) for f in roots] == [
        (mistake.kind, mistake.op, mistake.phase)
    ]
    assert roots[0]["where"] in mistake.places
    assert {f["caused_by"].partition("@")[0] for f in findings} <= {"", mistake.kind}
    report = output[output.rindex("ampwatch report: run") :]
    assert mistake.kind in report
    assert "What to change: " in report


@pytest.mark.rotating
@pytest.mark.parametrize("command", [at_night(command, command) for command in HEALTHY])
def test_what_is_done_right_is_left_alone(
    command: str, run_example: Callable[[str], ExampleRun]
) -> None:
    """Nothing is found, not even an info."""
    output, _, findings = run_example(command)

    assert [(f["kind"], f["where"], f["summary"]) for f in findings] == []
    assert "ampwatch report: run" in output


@pytest.mark.nightly
def test_one_precision_of_three_fails_and_its_remedy_makes_them_alike(
    run_example: Callable[[str], ExampleRun],
) -> None:
    """float32 and bfloat16 learn alike all the time, float16 only with the remedy."""
    failing, healed = (
        _last_losses(run_example(f"cifar_efficientnet{option}").output)
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


@pytest.mark.nightly
def test_the_efficientnet_says_what_came_of_each_precision(
    run_example: Callable[[str], ExampleRun],
) -> None:
    """Per precision: time, accuracy, a verdict against float32, and what the FLOPs ran in."""
    output, _, _ = run_example("efficientnet --steps 10")

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
