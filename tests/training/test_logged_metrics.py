"""What ``watch.metrics()``, ``summary()`` and ``gradient_norms()`` say, against what the training itself knows."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import ampwatch
from tests.promises.conftest import ahead

pytestmark = ahead

SCALE = 2.0**12


class Loop:
    """A training of four micro-batches, whose true gradients are known before they are clipped."""

    def __init__(self, *, scaled: bool = True) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1, bias=False))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, enabled=scaled)
        self.norms: dict[str, float] = {}

    def step(self, *, poison: float = 1.0) -> None:
        for _ in range(4):
            with torch.autocast(
                "cpu", torch.float16 if self.scaler.is_enabled() else torch.bfloat16
            ):
                loss = self.model(torch.randn(3, 6)).float().square().mean() * poison
            self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        self.norms = {
            name: parameter.grad.double().norm().item()
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None
        }
        nn.utils.clip_grad_norm_(self.model.parameters(), 1e-3)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


@pytest.mark.parametrize("scaled", [True, False])
def test_norms_are_true_whatever_is_scaled_accumulated_and_clipped(*, scaled: bool) -> None:
    """Without a scaler gradients are measured where the optimizer steps, so after they are clipped."""
    loop = Loop(scaled=scaled)
    seen = 0
    with ampwatch.monitor(loop.model, loop.scaler, serve=False) as watch:
        for index in range(12):
            loop.step()
            numbers = watch.metrics()
            if numbers.get("amp/sample_step") != index:
                continue
            seen += 1
            total = math.sqrt(sum(norm**2 for norm in loop.norms.values()))
            factor = 1.0 if scaled else 1e-3 / (total + 1e-6)
            expected = {name: norm * factor for name, norm in loop.norms.items()}
            assert watch.gradient_norms() == pytest.approx(expected, rel=1e-5)
            assert numbers["amp/grad_norm"] == pytest.approx(total * factor, rel=1e-5)

    assert seen


def test_numbers_are_of_the_newest_iteration_and_outlive_the_monitor() -> None:
    loop = Loop()
    watch = ampwatch.monitor(loop.model, loop.scaler, serve=False)
    for _ in range(4):
        loop.step()
    before = watch.metrics()
    loop.step(poison=math.inf)
    skipped = watch.metrics()
    watch.close()
    summary = watch.summary()

    assert (before["amp/step"], before["amp/loss_scale"], before["amp/skipped"]) == (
        3.0,
        SCALE,
        0.0,
    )
    assert (skipped["amp/step"], skipped["amp/loss_scale"]) == (4.0, SCALE / 2)
    assert (skipped["amp/skipped"], skipped["amp/skipped_steps"], skipped["amp/backoffs"]) == (
        1,
        1,
        1,
    )
    assert skipped["amp/loss"] == math.inf
    assert (summary["amp/steps"], summary["amp/skipped_share"]) == (5.0, 0.2)
    assert summary["amp/overhead_share"] > 0.0
    assert all(type(value) is float for value in summary.values())


def test_what_is_not_finite_has_no_norm() -> None:
    """The next healthy sample has one again."""
    loop = Loop()
    with ampwatch.monitor(loop.model, loop.scaler, serve=False, level="deep") as watch:
        loop.step(poison=math.nan)
        numbers, norms = watch.metrics(), watch.gradient_norms()

    assert numbers["amp/sample_step"] == 0.0
    assert numbers["amp/nonfinite_elements"] > 0
    assert "amp/grad_norm" not in numbers
    assert norms == {}


def test_light_measures_no_gradients_and_off_nothing() -> None:
    for level, keys in (("light", {"amp/step", "amp/loss_scale"}), ("off", set())):
        loop = Loop()
        with ampwatch.monitor(loop.model, loop.scaler, serve=False, level=level) as watch:
            loop.step()
            numbers = watch.metrics()

        assert keys <= numbers.keys()
        assert "amp/grad_norm" not in numbers
        assert watch.gradient_norms() == {}
