"""Findings about a loss scale that begins anew."""

from __future__ import annotations

import pytest

from ampwatch.diagnosis.evidence.scaler import ScalerChange
from ampwatch.diagnosis.scale.scale_reset import ScaleReset
from ampwatch.wire.records import Severity
from tests.workshop.simulation import Simulation

OK, INF = False, True


def calibrated() -> Simulation:
    """Return a run that found its scale, 8, and has taken 30 steps with it."""
    return Simulation().run([INF] * 13 + [OK] * 30)


def resume(
    run: Simulation, scale: float, *, loaded: bool = False, resumed: bool = True
) -> Simulation:
    """Go on with another state of the scaler."""
    run.scale, run.tracker = scale, 0
    run.shared.of(ScaleReset).observe(ScalerChange(run.step, loaded=loaded, resumed=resumed))
    return run


def test_a_jump_and_two_skips_are_a_reset_at_the_second_skip() -> None:
    """The step of the jump, the scales before and after, the skips so far; and then the whole burst.

    13 skips bring the scale back to 8; what comes after is no part of it.
    """
    run = resume(calibrated(), 65536.0)
    assert run.run([INF]).kinds == []
    (finding,) = run.run([INF]).book.findings

    assert (finding.kind, finding.where, finding.phase) == ("scale_reset", "api", "config")
    assert (finding.first_step, finding.last_step) == (43, 44)
    assert finding.evidence == {"scale_before": 8.0, "scale_after": 65536.0, "skips": 2.0}
    assert "scaler.state_dict()" in finding.advice

    (finding,) = run.run([INF] * 11 + [OK] * 40 + [INF] + [OK] * 5).book.findings
    assert finding.evidence["skips"] == 13
    assert (finding.count, finding.last_step) == (13, 55)


@pytest.mark.parametrize(
    ("scale", "verdicts"),
    [(8.0, [OK] * 20), (16.0, [INF, OK] * 3), (65536.0, [OK] * 30), (65536.0, [INF] + [OK] * 9)],
    ids=["restored", "one growth earlier", "fits as well", "one skip"],
)
def test_a_new_scaler_without_a_jump_or_a_burst_is_silent(
    scale: float, verdicts: list[bool]
) -> None:
    """Nothing was lost."""
    assert resume(calibrated(), scale).run(verdicts).kinds == []


def test_a_training_that_begins_anew_may_calibrate_anew() -> None:
    """A new optimizer without any state is not resumed from anything."""
    assert resume(calibrated(), 65536.0, resumed=False).run([INF] * 13 + [OK] * 9).kinds == []


def test_an_older_checkpoint_with_the_scale_of_its_time_is_no_reset() -> None:
    """Steps were taken with 65536 once; what skips now is the training that went back there."""
    run = Simulation().run([OK] * 30 + [INF] * 4 + [OK] * 30)
    assert "scale_reset" not in resume(run, 65536.0, loaded=True).run([INF] * 3 + [OK]).kinds


def test_a_fresh_state_that_was_loaded_is_a_reset() -> None:
    """No step was ever taken with 65536: it cannot be this training's own."""
    run = resume(calibrated(), 65536.0, loaded=True).run([INF] * 3)
    assert run.kinds == ["scale_reset"]
    assert "loaded" in run.book.findings[0].summary


def test_without_the_scale_before_a_restored_optimizer_makes_an_info() -> None:
    """It may be the first time that this training uses a scaler."""
    run = Simulation()
    run.shared.of(ScaleReset).observe(
        ScalerChange(0, loaded=False, resumed=True, known_before=False)
    )
    run.run([INF, INF])
    assert run.kinds == []
    (finding,) = run.run([INF]).book.findings

    assert (finding.kind, finding.severity) == ("scale_reset", Severity.INFO)
    assert "scale_before" not in finding.evidence


def test_a_scale_set_by_hand_is_the_users_business() -> None:
    """Nobody has announced another state."""
    run = calibrated()
    run.scale = 65536.0
    assert "scale_reset" not in run.run([INF] * 10).kinds
