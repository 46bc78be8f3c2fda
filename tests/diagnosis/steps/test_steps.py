"""The judge against the real GradScaler."""

from __future__ import annotations

import math
import random

import pytest
import torch

import ampwatch
from ampwatch.diagnosis.steps.steps import Totals
from ampwatch.wire.records import SkipClass
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
