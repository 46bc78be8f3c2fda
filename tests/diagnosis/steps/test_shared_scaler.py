"""Findings about optimizers that share a scaler."""

from __future__ import annotations

import random

import pytest

from ampwatch.diagnosis.evidence.iteration import ScalerSettings
from tests.workshop.simulation import Simulation

OK, INF = False, True


def step(run: Simulation, *verdicts: bool, of: int = 0) -> None:
    """Take one step of each optimizer, from optimizer ``of`` on, and one update."""
    before = run.scale
    run._move(found_inf=any(verdicts))
    iteration = run.iteration(dict(enumerate(verdicts, of)))
    iteration.scale_before = before
    run.take(iteration)


def test_one_that_keeps_being_skipped_while_the_other_steps_is_named() -> None:
    """Two of three steps of the second are lost at scales that fitted before."""
    run = Simulation()
    for n in range(24):
        step(run, OK, n % 3 > 0)
    (finding,) = [f for f in run.book.findings if f.root]

    assert (finding.kind, finding.where) == ("shared_scaler_desync", "optimizer:1")
    assert finding.phase == "optimizer"
    assert finding.evidence["skipped_of_other"] == 0
    assert finding.first_step <= 4


def test_one_that_never_steps_is_named_below_a_scale_of_one() -> None:
    """Until then it may be calibrating."""
    run = Simulation()
    for _ in range(17):
        step(run, OK, INF)
    assert "shared_scaler_desync" not in run.kinds
    step(run, OK, INF)
    assert "shared_scaler_desync" in run.kinds


def test_two_that_are_skipped_alike_are_not() -> None:
    """An overflow that hits both is no matter of sharing."""
    run = Simulation()
    for n in range(30):
        step(run, n % 3 > 0, n % 3 > 0)
    assert "shared_scaler_desync" not in run.kinds


def test_a_long_calibration_of_one_is_silent() -> None:
    """From 2^28, with gradients that fit at 2^12."""
    run = Simulation(scale=2.0**28)
    for n in range(60):
        step(run, OK, n < 16)
    assert run.kinds == []


@pytest.mark.parametrize("interval", [5, 20, 200])
@pytest.mark.parametrize("spread", [0.3, 0.7])
def test_a_louder_optimizer_that_makes_all_the_probes_is_silent(
    interval: int, spread: float
) -> None:
    """One step in a growth interval is what a scaler costs."""
    draw = random.Random(interval)
    run = Simulation(scale=2.0**24, scaler=ScalerSettings(2.0, 0.5, interval))
    for n in range(1500):
        grown = 0.1 + 0.9 * min(1.0, n / 300)
        loud, quiet = (s * grown * draw.lognormvariate(0.0, spread) for s in (0.05, 0.002))
        step(run, run.scale * quiet > 65504.0, run.scale * loud > 65504.0)
    assert "shared_scaler_desync" not in run.kinds


def test_one_search_after_gradients_have_grown_is_one_fall() -> None:
    """A generator steps a sixth as often as its critic: six skips in a row from 2^19, 2^14 fits, twice."""
    run = Simulation(scale=2.0**20)
    for found_inf in (OK, OK, *6 * [INF], OK, INF, OK, INF):
        for _ in range(5):
            step(run, OK)
        step(run, found_inf, of=1)
    assert run.kinds == []


def test_growth_that_slows_down_is_silent() -> None:
    """The scale follows it by one more power of two each time, after more steps than the last."""
    run = Simulation(scale=2.0**18)
    for steps_between in (3, 4, 5, 6, 7, 8, 9, 10, 11, 12):
        for _ in range(steps_between):
            step(run, OK, OK)
        step(run, OK, INF)
    assert run.kinds == []
