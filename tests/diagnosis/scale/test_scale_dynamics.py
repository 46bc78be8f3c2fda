"""Findings about how the loss scale moves, where it will be, and that it was set anew."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from ampwatch.diagnosis.evidence.iteration import ScalerSettings
from ampwatch.diagnosis.evidence.scaler import ScalerChange
from ampwatch.diagnosis.news import Reason
from ampwatch.diagnosis.scale.falls import SCALE_FLOOR, alarm_rate, drift, steps_until
from ampwatch.diagnosis.scale.scale_reset import ScaleReset
from ampwatch.wire.records import Severity
from tests.workshop.simulation import Simulation

OK, INF = False, True


def test_a_storm_is_a_collapse_with_the_time_that_is_left() -> None:
    """Five unexplained skips in a row: a warning, since the first of them, with a forecast."""
    run = Simulation().run([OK] * 50 + [INF] * 5)
    (finding,) = run.book.findings

    assert (finding.kind, finding.severity) == ("scale_collapse", Severity.WARNING)
    assert (finding.first_step, finding.last_step, finding.count) == (50, 54, 5)
    assert finding.where == "optimizer:0"
    assert finding.evidence["steps_to_floor"] == 139  # 2^11 -> 2^-128
    assert "5 steps skipped in a row since step 50, scale now 2048" in finding.summary
    assert "infinite in 139 steps" in finding.summary
    assert "bfloat16" in finding.advice


@pytest.mark.parametrize("verdicts", [[INF], [INF] * 4, [INF, OK] * 3])
def test_fewer_skips_than_a_storm_are_no_collapse(verdicts: list[bool]) -> None:
    """One bad batch, or a spike of a few steps, is not the end."""
    assert Simulation().run([OK] * 50 + verdicts + [OK] * 50).kinds == []


@pytest.mark.parametrize("interval", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("spread", [0.5, 0.7, 1.2])
def test_noisy_gradients_that_the_scale_follows_are_silent(interval: int, spread: float) -> None:
    """Log-normal gradients, the scale far too high at first: it comes down, and up, and down."""
    draw = random.Random(interval)
    run = Simulation(scale=2.0**24, scaler=ScalerSettings(2.0, 0.5, interval))
    for _ in range(4000):
        largest = 0.01 * draw.lognormvariate(0.0, spread)
        run.run([run.scale * largest > 65504.0])

    assert sum(c.value > 0 for c in run.classes) > 50
    assert run.kinds == []


def test_the_collapse_is_reported_with_its_numbers_at_every_step() -> None:
    """Whoever looks sees how far it has come; the forecast ends where the harm begins."""
    run = Simulation().run([OK] * 50 + [INF] * 150)
    (finding,) = run.book.findings

    assert (finding.count, finding.last_step) == (150, 199)
    reasons = [Reason.MADE] + [Reason.CHANGED] * 2 + [Reason.WORSE] + [Reason.CHANGED] * 142
    assert [reason for _, reason in run.notified] == reasons
    assert finding.evidence["steps_to_floor"] == 0
    assert "the next finite step makes weights infinite" in finding.summary


def test_more_skips_than_growth_makes_up_for_are_a_slow_collapse() -> None:
    """1 step in 200 skipped, spread out: the scale is on its way to zero. A storm makes it worse."""
    run = Simulation().run(([OK] * 189 + [INF] + [OK] * 209 + [INF]) * 5)
    (finding,) = run.book.findings

    assert (finding.kind, finding.severity) == ("scale_collapse", Severity.WARNING)
    assert finding.evidence["skip_rate"] == pytest.approx(1 / 200, rel=0.2)
    assert "skipped, more than growth makes up for" in finding.summary

    run.run([OK] * 20 + [INF] * 8)
    assert [(f.kind, f.severity) for f in run.book.findings] == [
        ("scale_collapse", Severity.CRITICAL)
    ]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 6))]
)
def test_rare_skips_below_the_alarm_line_are_silent(seed: int) -> None:
    """At half the alarm rate the scale rises; chance alone makes no collapse in 50 000 steps."""
    draw = random.Random(seed)
    scaler = ScalerSettings(2.0, 0.5, 100)
    rate = 0.5 * (1 - 2 ** (-1 / 100))
    skips = [draw.random() < rate for _ in range(50_000)]
    alone = [now and not before for before, now in itertools.pairwise(skips)]

    run = Simulation(scaler=scaler).run(alone)

    assert sum(alone) > 100
    assert "scale_collapse" not in run.kinds


def test_steps_taken_below_one_are_named_and_explain_the_way_there() -> None:
    """The scale comes to rest below 1: the range does not fit; the fall, since step 0, was its symptom."""
    run = Simulation().run([INF] * 25 + [OK] * 3)
    collapse, below = run.book.findings

    assert (below.kind, below.root, below.first_step) == ("scale_below_one", True, 25)
    assert (collapse.kind, collapse.root) == ("scale_collapse", False)
    assert (collapse.first_step, collapse.caused_by) == (0, below.key)


def test_a_scale_below_one_holds_until_a_step_is_taken_above_it_and_says_which() -> None:
    """However long that is; what begins again is not over."""
    run = Simulation(scaler=ScalerSettings(2.0, 0.5, 100)).run([INF] * 17 + [OK] * 90)
    (below,) = (f for f in run.book.findings if f.kind == "scale_below_one")
    assert not below.is_gone

    run.run([OK] * 11)
    assert (below.severity, below.last_seen) == (Severity.WARNING, "over since step 117")
    assert below.summary == (
        "The loss scale was below 1 between steps 17 and 116, 2^-1 at the lowest; it has come back to 1 by step 117"
    )
    run.run([INF])
    assert not below.is_gone
    assert below.summary.startswith("The loss scale is below 1 since step 118, 2^-1 at step 118")
    run.run([OK, OK])
    run.run([OK] * 400)
    assert (below.severity, below.last_seen) == (Severity.INFO, "over since step 219")


def test_a_scale_below_one_that_the_user_chose_is_the_users_business() -> None:
    """Neither an initial scale nor a scale by hand below 1 is a finding."""
    run = Simulation(scale=0.5).run([OK] * 50)
    run.scale, run.tracker = 0.25, 0
    run.take(run.iteration({0: OK}, scale_given=True))
    run.run([OK] * 50)

    assert run.kinds == []


def test_a_scale_that_grows_without_end_is_a_runaway() -> None:
    """From 65536 to 2^32 without one overflow: the gradients are all but zero."""
    scaler = ScalerSettings(2.0, 0.5, 5)
    run = Simulation(scaler=scaler).run([OK] * 5 * 20)
    (finding,) = run.book.findings

    assert (finding.kind, finding.where) == ("scale_runaway", "api")
    assert finding.evidence["loss_scale"] == 2.0**36
    assert finding.first_step == 5 * 16 - 1


def test_a_large_scale_that_meets_overflows_is_no_runaway() -> None:
    """A scaler may start high, as some frameworks' do, if it comes down when it has to."""
    scaler = ScalerSettings(2.0, 0.5, 20)
    assert Simulation(scale=2.0**32, scaler=scaler).run(([OK] * 20 + [INF]) * 30).kinds == []


def test_a_scaler_with_bfloat16_is_mentioned_and_a_warning_when_it_moves() -> None:
    """At rest it only costs time; when the scale climbs it is a warning, and why the scale runs away."""
    scaler = ScalerSettings(2.0, 0.5, 5)
    run = Simulation(scaler=scaler, dtypes=["bfloat16"]).run([OK] * 4)
    at_rest = [(f.kind, f.severity, f.where, f.phase) for f in run.book.findings]
    run.run([OK])

    assert at_rest == [("scaler_with_bf16", Severity.INFO, "api", "config")]
    assert [f.severity for f in run.book.findings] == [Severity.WARNING]

    run.run([OK] * 5 * 19)
    assert [(f.kind, f.root) for f in run.book.findings] == [
        ("scaler_with_bf16", True),
        ("scale_runaway", False),
    ]


def test_bfloat16_beside_float16_is_no_misuse() -> None:
    """Some regions run in bfloat16, the scaler is there for the others."""
    scaler = ScalerSettings(2.0, 0.5, 5)
    assert Simulation(scaler=scaler, dtypes=["float16", "bfloat16"]).run([OK] * 20).kinds == []


def _simulated_drift(rate: float, scaler: ScalerSettings, steps: int) -> float:
    """Let a scaler run and measure how log2(scale) really moves per step."""
    draw, log2_scale, tracker = random.Random(0), 0.0, 0
    for _ in range(steps):
        if draw.random() < rate:
            log2_scale += math.log2(scaler.backoff_factor)
            tracker = 0
            continue
        tracker += 1
        if tracker == scaler.growth_interval:
            log2_scale += math.log2(scaler.growth_factor)
            tracker = 0
    return log2_scale / steps


@pytest.mark.parametrize(
    ("rate", "scaler"),
    [
        (0.05, ScalerSettings(2.0, 0.5, 20)),
        (0.01, ScalerSettings(2.0, 0.5, 20)),
        (0.02, ScalerSettings(2.0, 0.25, 50)),
        (0.3, ScalerSettings(4.0, 0.5, 3)),
        (1.0, ScalerSettings(2.0, 0.5, 2000)),
    ],
)
def test_the_drift_is_the_drift_of_a_simulated_scaler(rate: float, scaler: ScalerSettings) -> None:
    """The closed form agrees with 400 000 steps of a scaler in Python."""
    simulated = _simulated_drift(rate, scaler, 400_000)

    assert drift(rate, scaler) == pytest.approx(simulated, rel=0.1, abs=2e-3)


def test_the_alarm_line_is_one_step_in_2886_at_the_default_interval() -> None:
    """The number that the documentation names."""
    assert 1 / alarm_rate(ScalerSettings(2.0, 0.5, 2000)) == pytest.approx(2885.9, abs=0.1)
    assert 1 / alarm_rate(ScalerSettings(2.0, 0.5, 1000)) == pytest.approx(1443.2, abs=0.1)


@pytest.mark.parametrize(
    "scaler",
    [ScalerSettings(2.0, 0.5, 20), ScalerSettings(3.0, 0.7, 100), ScalerSettings(2, 0.1, 5)],
)
def test_at_the_alarm_line_the_scale_stands_still(scaler: ScalerSettings) -> None:
    """Above it the scale falls, below it the scale rises."""
    line = alarm_rate(scaler)

    assert drift(line, scaler) == pytest.approx(0.0, abs=1e-12)
    assert drift(line * 1.5, scaler) < 0 < drift(line / 1.5, scaler)


def test_a_storm_from_the_default_scale_reaches_the_floor_after_144_backoffs() -> None:
    """65536 is 2^16 and the floor 2^-128: 144 halvings, as counted on a real scaler."""
    assert steps_until(65536.0, SCALE_FLOOR, -1.0) == 144
    assert steps_until(65536.0, 1.0, -1.0) == 16


def test_a_scale_at_the_floor_is_there_and_one_that_rises_never_gets_there() -> None:
    """0 and ``None`` are different answers."""
    assert steps_until(0.0, SCALE_FLOOR, -1.0) == 0
    assert steps_until(2.0, 1.0, 0.5) is None


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
