"""Findings about skips that come back with a period."""

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
