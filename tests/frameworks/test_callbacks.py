"""The callbacks of ampwatch in the trainers that they are for: what is logged, and how a training ends.

Beside ``test_frameworks.py``, which runs the same programs, with the same callbacks, for the support
matrix. Here they are told to fail, to be watched twice, or to train in bfloat16.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.environments import ENVIRONMENTS, Environment
from tests.frameworks.running import Fault, Outcome, Runner, Way, has

FAILS_AT, FAULT_AT, LOG_EVERY, STEPS = 30, 24, 10, 44
"""Those of programs/shared.py, which is not imported: it is for a Python with the frameworks."""

ROWS = {row.name: row for row in ENVIRONMENTS}
TRAINERS = ("lightning", "hf-trainer")

pytestmark = pytest.mark.nightly


def told_to(name: str, mode: str) -> Environment:
    row = ROWS[name]
    return Environment(f"{name}-{mode}", row.title, row.program, needs=row.needs, mode=mode)


def ran(
    row: Environment,
    python: str,
    directory: Path,
    fault: Fault = Fault.NONE,
    ways: tuple[Way, ...] = (Way.EDIT,),
) -> list[Outcome]:
    """Run the program of a row in each of the ways."""
    if not has(python, row.needs):
        pytest.fail(f"expected {', '.join(row.needs)} in the environment of {python}")
    runner = Runner(python, directory)
    with runner.daemon() as daemon:
        outcomes = runner.run_all(row, [(way, fault) for way in ways], daemon)
    for outcome in outcomes:
        assert outcome.code == 0, outcome.stderr
    return outcomes


def state(outcome: Outcome) -> set[str]:
    return {
        labels["state"]
        for name, labels, value in outcome.samples
        if name == "ampwatch_run_state" and value
    }


def step_logged(outcome: Outcome, name: str) -> list[tuple[int, dict[str, float]]]:
    """Return what was logged, with the number of iterations that had ended by then."""
    after = 1 if name == "lightning" else 0  # its loggers count from 0
    return [(step + after, values) for step, values in outcome.ranks[0]["logged"] if values]


@pytest.mark.parametrize("name", TRAINERS)
def test_what_reports_gets_the_numbers_that_the_framework_has_itself(
    name: str, python: str, tmp_path: Path
) -> None:
    """Scale and skips of the step that is logged, also where report_to comes before the callback."""
    (outcome,) = ran(told_to(name, ""), python, tmp_path, Fault.GRADIENT)
    truth, logged = outcome.ranks[0], step_logged(outcome, name)

    assert {step for step, _ in logged} >= set(range(LOG_EVERY, STEPS, LOG_EVERY))
    for step, values in logged:
        known = int(values.get("amp/step", step - 1))
        assert known == step - 1
        if "amp/loss_scale" in values:
            assert values["amp/loss_scale"] == truth["scales"][known]
            assert values["amp/skipped_steps"] == sum(at <= known for at in truth["skipped"])
    assert "amp/grad_norm" in logged[1][1]


@pytest.mark.parametrize("name", TRAINERS)
def test_a_training_that_raises_ends_as_failed_although_the_program_goes_on(
    name: str, python: str, tmp_path: Path
) -> None:
    """The exception is caught, so that nothing is left to see at the end of the process."""
    (outcome,) = ran(told_to(name, "fails"), python, tmp_path)

    assert "caught: planted" in outcome.stdout
    assert len(outcome.ranks[0]["scales"]) == FAILS_AT
    assert state(outcome) == {"failed"}


@pytest.mark.parametrize("name", TRAINERS)
def test_stop_ends_the_training_in_the_way_of_the_framework(
    name: str, python: str, tmp_path: Path
) -> None:
    """No exception: fit() and train() return, after the step that has made it critical."""
    (outcome,) = ran(told_to(name, "stops"), python, tmp_path, Fault.GRADIENT)

    assert "caught" not in outcome.stdout
    assert FAULT_AT < len(outcome.ranks[0]["scales"]) < STEPS
    assert state(outcome) == {"finished"}


@pytest.mark.parametrize("mode", ["twice", "beside", "bfloat16"])
@pytest.mark.parametrize("name", TRAINERS)
def test_what_is_odd_is_one_sentence_and_the_training_the_same(
    name: str, mode: str, python: str, tmp_path: Path
) -> None:
    """Two callbacks, one beside a monitor of the user's own, one without a scaler."""
    row = told_to(name, mode)
    bare, outcome = ran(row, python, tmp_path, ways=(Way.BARE, Way.EDIT))

    assert outcome.ranks[0]["weights"] == bare.ranks[0]["weights"]
    assert step_logged(outcome, name)
    said = [line for line in outcome.stderr.splitlines() if "ampwatch.integrations" in line]
    assert len(said) == (mode != "bfloat16"), outcome.stderr
    assert "Traceback" not in outcome.stderr
    if mode == "bfloat16":
        assert not any("amp/loss_scale" in values for _, values in step_logged(outcome, name))
    steps = [step for step, values in outcome.ranks[0]["logged"] if "amp/step" in values]
    assert len(steps) - len(set(steps)) <= (name == "hf-trainer"), (
        "its last log may be of that step"
    )


def test_the_tracker_of_accelerate_hands_the_numbers_to_the_others(
    python: str, tmp_path: Path
) -> None:
    """At the step that the user has logged."""
    (outcome,) = ran(told_to("accelerate", "tracked"), python, tmp_path, Fault.GRADIENT)
    truth, logged = outcome.ranks[0], step_logged(outcome, "accelerate")

    assert [step for step, _ in logged] == list(range(LOG_EVERY, STEPS, LOG_EVERY))
    for step, values in logged:
        assert values["amp/loss_scale"] == truth["scales"][step - 1]
        assert values["amp/skipped_steps"] == sum(at < step for at in truth["skipped"])
    assert state(outcome) == {"finished"}
