"""Skips are not all alike."""

from __future__ import annotations

from ampwatch.diagnosis.evidence.iteration import ScalerSettings
from ampwatch.wire.records import SkipClass
from tests.workshop.simulation import Simulation

OK, INF = False, True
NONE, CALIBRATING, PROBE, UNPROVOKED, STORM = SkipClass


def _classes(simulation: Simulation) -> list[SkipClass]:
    return [c for c in simulation.classes if c is not NONE]


def test_skips_before_the_first_unskipped_run_are_calibration() -> None:
    """A scale that starts too high finds its place; also with good steps in between."""
    run = Simulation(scale=2.0**24).run([INF, INF, OK, INF, OK, OK, INF] + [OK] * 30)

    assert _classes(run) == [CALIBRATING] * 4


def test_consecutive_unexplained_skips_are_a_storm() -> None:
    """The first one may be chance; those that follow it are not."""
    run = Simulation().run([OK] * 100 + [INF] * 4 + [OK] * 5 + [INF])

    assert _classes(run) == [UNPROVOKED, STORM, STORM, STORM, UNPROVOKED]


def test_after_a_probe_the_old_scale_must_hold() -> None:
    """A second skip in a row is at a scale that was fine before the growth."""
    scaler = ScalerSettings(2.0, 0.5, 50)
    run = Simulation(scaler=scaler).run([OK] * 50 + [INF, INF, INF])

    assert _classes(run) == [PROBE, UNPROVOKED, STORM]


def test_below_scale_one_it_is_no_calibration_any_more() -> None:
    """Calibration ends where the loss would be shrunk."""
    run = Simulation(scale=4.0).run([INF] * 5)

    assert _classes(run) == [CALIBRATING, CALIBRATING, UNPROVOKED, STORM, STORM]


def test_with_a_loss_that_is_not_finite_the_scale_is_not_to_blame() -> None:
    """No scale cures an infinite loss, so it is neither calibration nor a probe."""
    run = Simulation().run([INF, INF, INF], loss=float("nan"))

    assert _classes(run) == [UNPROVOKED, STORM, STORM]


def test_a_scale_set_by_hand_calibrates_again() -> None:
    """The user moved the scale; it may have to come down again."""
    run = Simulation().run([OK] * 100)
    run.scale, run.tracker = 2.0**30, 0
    run.take(run.iteration({0: OK}, scale_given=True))
    run.run([INF] * 5 + [OK] * 40 + [INF])

    assert _classes(run) == [CALIBRATING] * 5 + [UNPROVOKED]


def test_with_a_short_growth_interval_calibration_ends_with_the_first_growth() -> None:
    """An interval shorter than the calibration run counts as the run."""
    run = Simulation(scaler=ScalerSettings(2.0, 0.5, 3)).run([INF] + [OK] * 3 + [INF])

    assert _classes(run) == [CALIBRATING, PROBE]


def test_a_fall_far_below_a_scale_that_worked_is_no_calibration() -> None:
    """The fault is of the first skip; what it is called is known at the fifth, a 16th below."""
    run = Simulation(scale=65536.0).run([OK] * 15 + [INF] * 8)

    assert _classes(run) == [CALIBRATING] * 4 + [UNPROVOKED] + [STORM] * 3
    (finding,) = run.book.findings
    assert (finding.kind, finding.first_step) == ("scale_collapse", 15)
    assert "8 steps skipped in a row since step 15" in finding.summary


def test_a_few_halvings_below_a_scale_that_worked_are_calibration() -> None:
    """Gradients grow with the first updates; and two steps do not prove a scale."""
    for steps in ([OK] * 15 + [INF] * 4 + [OK] * 30, [OK] * 2 + [INF] * 12 + [OK] * 30):
        run = Simulation(scale=2.0**24).run(steps)

        assert set(_classes(run)) == {CALIBRATING}
        assert run.kinds == []
