"""The judge against the real GradScaler: classes of skips, periods, shared scalers, and schedules that run ahead."""

from __future__ import annotations

import math
import random

import pytest
import torch

import ampwatch
from ampwatch.diagnosis.evidence.iteration import ScalerSettings
from ampwatch.diagnosis.steps.steps import Totals
from ampwatch.wire.records import Finding, Severity, SkipClass
from tests.workshop.simulation import Simulation


class Oracle:
    """Counts growths, backoffs and skips by comparing ``get_scale()`` around ``update()``."""

    def __init__(self) -> None:
        self.growths = self.backoffs = self.skipped = 0

    def note(self, before: float, after: float, *, stepped: bool) -> None:
        self.growths += after > before
        self.backoffs += after < before
        self.skipped += not stepped


@pytest.mark.rotating
@pytest.mark.parametrize(("seed", "flavour"), [(0, "foreach"), (1, "fused")])
def test_totals_agree_with_what_the_scaler_did(seed: int, flavour: str) -> None:
    """Growths, backoffs, skips and applied steps over a random training, both optimizer paths."""
    draw, oracle = random.Random(seed), Oracle()
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=1.0, **{flavour: True})
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3, backoff_factor=0.25)
    with ampwatch.monitor(None, scaler, optimizer=optimizer, serve=False) as watch:
        for _ in range(200):
            factor = math.inf if draw.random() < 0.2 else 0.0
            before_weight = weight.detach().clone()
            scaler.scale((weight * torch.tensor([1.0, 1.0, 1.0, factor])).nansum()).backward()
            before = scaler.get_scale()
            weight.grad[0] += 1.0
            scaler.step(optimizer)
            scaler.update()
            stepped = not torch.equal(weight, before_weight)
            oracle.note(before, scaler.get_scale(), stepped=stepped)
            optimizer.zero_grad()

            assert watch.last_step.skipped == (not stepped)
            assert watch.last_step.loss_scale == scaler.get_scale()
    totals = watch._diagnosis.totals

    assert oracle.skipped > 10
    assert (totals.growths, totals.backoffs) == (oracle.growths, oracle.backoffs)
    assert sum(totals.skipped[0]) == oracle.skipped
    assert totals.steps[0] == 200
    assert totals.set_by_hand == 0


def test_a_scale_set_by_hand_is_distinguished_from_the_scalers_own_moves() -> None:
    """``update(new_scale)``, ``load_state_dict`` and writing to the scale are all seen."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)

    def step(new_scale: float | None = None) -> None:
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update(new_scale)
        optimizer.zero_grad()

    counts = []
    with ampwatch.monitor(None, scaler, serve=False) as watch:
        step()
        counts.append(watch._diagnosis.totals.set_by_hand)
        step(new_scale=128.0)
        counts.append(watch._diagnosis.totals.set_by_hand)
        scaler.load_state_dict({**scaler.state_dict(), "scale": 1024.0})
        step()
        counts.append(watch._diagnosis.totals.set_by_hand)
        scaler._scale.fill_(2048.0)
        step()
        counts.append(watch._diagnosis.totals.set_by_hand)
        step()
        counts.append(watch._diagnosis.totals.set_by_hand)

    assert counts == [0, 1, 2, 3, 3]
    assert watch._diagnosis.totals.growths == 0


def test_a_gap_in_the_iterations_is_not_taken_for_a_hand() -> None:
    """After dropped iterations the scale before is unknown, and nothing is made of it."""
    run = Simulation().run([False] * 5)
    run.step += 7
    run.scale /= 16
    run.take(run.iteration({0: True}))

    verdict_totals = Totals()
    run.step += 1
    verdict_totals.add(run.iteration({0: False}), run.judge.judge(run.iteration({0: False})))

    assert run.classes[-1] is SkipClass.CALIBRATING
    assert verdict_totals.set_by_hand == 0


def test_an_optimizer_that_was_unscaled_and_not_stepped_backs_off_without_a_skip() -> None:
    """The user chose not to step; the scaler backs off anyway."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    with ampwatch.monitor(None, scaler, serve=False) as watch:
        (scaler.scale(weight.sum()) * math.inf).backward()
        scaler.unscale_(optimizer)
        scaler.update()
    totals = watch._diagnosis.totals

    assert (totals.backoffs, totals.steps, totals.set_by_hand) == (1, {}, 0)
    assert watch.last_step == ampwatch.LastStep(step=0, loss_scale=32.0)


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
    assert (finding.first_step, finding.count) == (15, 9)


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
