"""Findings about skips that come back with a period, and about optimizers that share a scaler."""

from __future__ import annotations

import random

import pytest

from ampwatch.diagnosis.evidence.iteration import ScalerSettings
from ampwatch.wire.records import Finding, Severity
from tests.workshop.simulation import Simulation

OK, INF = False, True


def lazily(run: Simulation, period: int, times: int, *, loss: float = 1.0) -> Simulation:
    """Skip one step in ``period``, with a loss of its own."""
    for _ in range(times):
        run.run([OK] * (period - 1)).run([INF], loss=loss)
    return run


def test_nine_skips_at_one_distance_are_periodic_at_the_ninth() -> None:
    """The scale never grows in between, and does not fit after eight halvings either."""
    run = lazily(Simulation(), 16, 8)
    assert run.kinds == []
    (finding,) = lazily(run, 16, 1).book.findings

    assert (finding.kind, finding.where, finding.phase) == (
        "periodic_skip",
        "optimizer:0",
        "backward",
    )
    assert (finding.evidence["period"], finding.evidence["residue"]) == (16, 15)


def test_a_term_that_the_scale_has_to_be_found_for_is_calibration() -> None:
    """A large loss that comes rarely costs a halving each time, until it fits."""
    run = lazily(Simulation(), 16, 7).run([OK] * 160)
    assert run.kinds == []


def test_below_one_it_will_never_fit() -> None:
    """There the scale is not what makes the gradients too large."""
    assert "periodic_skip" in lazily(Simulation(scale=4.0), 16, 4).kinds


def test_what_it_does_to_the_scale_is_its_symptom() -> None:
    """The scale is halved every 16 steps, down below one."""
    run = lazily(Simulation(), 16, 22)
    roots = [f.kind for f in run.book.findings if f.root]

    assert roots == ["periodic_skip"]
    assert "scale_below_one" in run.kinds


@pytest.mark.parametrize("interval", [3, 10])
def test_a_term_that_growth_brings_back_is_reported_by_its_loss(interval: int) -> None:
    """The scale recovers between two skips, and the loss of the skipped steps stands out."""
    run = Simulation(scaler=ScalerSettings(2.0, 0.5, interval))
    assert lazily(run, 16, 5, loss=100.0).kinds == ["periodic_skip"]


def test_probes_are_periodic_and_healthy() -> None:
    """One step in growth_interval + 1, whatever the loss."""
    run = Simulation(scaler=ScalerSettings(2.0, 0.5, 15))
    assert lazily(run, 16, 20, loss=100.0).kinds == []


def test_probes_that_lock_to_the_batches_are_healthy() -> None:
    """The first of five batches after a growth that does not fit: every 20 steps."""
    run = Simulation(scaler=ScalerSettings(2.0, 0.5, 17))
    assert lazily(run, 20, 20).kinds == []


def test_gradients_that_grow_evenly_are_not_periodic() -> None:
    """The loss rises tenfold from skip to skip."""
    run = Simulation()
    for n in range(6):
        run.run([OK] * 11 + [INF], loss=10.0**n)
    assert "periodic_skip" not in run.kinds


def test_a_batch_of_nans_is_a_fault_of_the_data() -> None:
    """It comes once an epoch, and has been found."""
    run = Simulation()
    run.book.make(
        Finding(
            kind="nonfinite_input",
            severity=Severity.WARNING,
            where="",
            summary="",
            kind_advice="",
            phase="forward",
            first_step=8,
            last_step=80,
        )
    )
    assert lazily(run, 9, 6).kinds == ["nonfinite_input"]


@pytest.mark.parametrize("interval", [1, 3, 8, 20])
def test_varying_gradients_are_not_periodic(interval: int) -> None:
    """Even where the loss says which steps have the large ones."""
    draw = random.Random(interval)
    run = Simulation(scale=2.0**24, scaler=ScalerSettings(2.0, 0.5, interval))
    for _ in range(2000):
        largest = 0.01 * draw.lognormvariate(0.0, 0.7)
        run.run([run.scale * largest > 65504.0], loss=largest)
    assert "periodic_skip" not in run.kinds


def test_an_optimizer_that_steps_every_second_time_is_skipped_in_a_row() -> None:
    """Those of a GAN take turns: that no step is taken is no period of two."""
    run = Simulation(scale=4.0)
    for index in range(60):
        run.take(run.iteration({index % 2: INF}))
    assert "periodic_skip" not in run.kinds


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
