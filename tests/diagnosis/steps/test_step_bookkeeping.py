"""Schedulers that run ahead."""

from __future__ import annotations

from ampwatch.diagnosis.evidence.iteration import ScalerSettings
from ampwatch.wire.records import Severity
from tests.workshop.simulation import Simulation

OK, INF = False, True


def test_one_step_ahead_is_mentioned_and_three_are_a_warning() -> None:
    """A schedule that loses three steps of its warm-up is worth a warning."""
    run = Simulation(scale=2.0**28)
    severities = []
    for _ in range(4):
        run.run([INF, OK], scheduled=True)
        severities.append([f.severity for f in run.book.findings])

    assert severities == [[Severity.INFO], [Severity.INFO], [Severity.WARNING], [Severity.WARNING]]


def test_while_every_step_is_skipped_nothing_is_said_of_the_schedule() -> None:
    """No rate is used then. Once the optimizer steps again it is told, with all steps since the first.

    It says which optimizer, how often and since when: all that a user needs to find the line.
    """
    run = Simulation(scale=2.0**60).run([OK] * 9 + [INF] * 12, scheduled=True)
    assert "scheduler_ahead" not in run.kinds

    run.run([OK], scheduled=True)
    (finding,) = [f for f in run.book.findings if f.kind == "scheduler_ahead"]

    assert (finding.first_step, finding.last_step, finding.count) == (9, 20, 12)
    assert (finding.where, finding.phase) == ("optimizer:0", "optimizer")
    assert finding.severity is Severity.WARNING
    assert "scaler.get_scale()" in finding.advice


def test_a_scheduler_that_waits_for_the_optimizer_is_right() -> None:
    """Not stepped on skipped iterations: nothing to say."""
    run = Simulation(scale=2.0**28)
    stepped = False
    for found_inf in [INF] * 8 + [OK] * 30:
        run.run([found_inf], scheduled=stepped)
        stepped = not found_inf

    assert run.kinds == []


def test_probes_are_the_price_of_a_scaler_and_not_a_schedule_ahead() -> None:
    """A long healthy run with a scheduler per step and a probe per growth says nothing."""
    scaler = ScalerSettings(2.0, 0.5, 20)
    run = Simulation(scaler=scaler).run(([OK] * 20 + [INF]) * 100, scheduled=True)

    assert run.kinds == []


def test_a_schedule_by_the_epoch_that_moves_after_a_skip_is_right() -> None:
    """Every tenth step moves the schedule, and every tenth step is skipped."""
    run = Simulation(scale=2.0**60)
    for _ in range(30):
        run.run([OK] * 8 + [INF])
        run.run([OK], scheduled=True)

    assert "scheduler_ahead" not in run.kinds


def test_a_few_steps_ahead_of_a_long_schedule_stay_a_note() -> None:
    """Three of a thousand are not worth a warning."""
    run = Simulation(scale=2.0**60).run([OK] * 1000, scheduled=True)
    for _ in range(4):
        run.run([INF], scheduled=True)
        run.run([OK] * 10, scheduled=True)

    assert [f.severity for f in run.book.findings if f.kind == "scheduler_ahead"] == [Severity.INFO]
