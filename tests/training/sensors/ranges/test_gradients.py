"""Gradients as they stand before they are unscaled, in every way to step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ampwatch.training.sensors.ranges.gradients import DirectGradientSensor, ScaledGradientSensor
from ampwatch.wire.records import Topic
from tests.training.sensors.notes import Note, Parts

SCALE = 1024.0


class Bench:
    """A linear model whose true gradients are known: those of the sum of its outputs."""

    def __init__(self, scaler: Any = None, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2)
        self.x = torch.randn(5, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, **options)
        self.scaler = scaler
        self.parts = Parts([self.model], Topic.GRADIENT, scaler=scaler)
        made = ScaledGradientSensor if self.parts.context.is_scaled else DirectGradientSensor
        self.sensor: Any = made(self.parts.context)
        self.parts.install(self.sensor)

    def backward(self, factor: float = 1.0) -> None:
        loss = self.model(self.x).sum() * factor
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def end(self) -> None:
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad()
        self.parts.governor.step += 1

    @property
    def true(self) -> dict[str, torch.Tensor]:
        weight = self.x.sum(0).expand(2, 3)
        return {"weight": weight, "bias": torch.full((2,), float(len(self.x)))}

    @property
    def notes(self) -> list[Note]:
        return self.parts.notes.notes


def scaler(scale: float = SCALE) -> Any:
    return torch.amp.GradScaler("cpu", init_scale=scale)


@pytest.mark.parametrize("unscaled_by_user", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_scaled_gradients_are_measured_before_they_are_unscaled(
    *, fused: bool, unscaled_by_user: bool
) -> None:
    """Whoever unscales them, and once."""
    bench = Bench(scaler(), fused=fused)
    bench.backward()
    if unscaled_by_user:
        bench.scaler.unscale_(bench.optimizer)
    bench.end()

    assert [n.name for n in bench.notes] == ["weight", "bias"]
    for name, values in bench.parts.notes.of(Topic.GRADIENT).items():
        torch.testing.assert_close(values, SCALE * bench.true[name])
    assert all(n.how.scaled for n in bench.notes)


def test_without_a_scaler_they_are_measured_when_the_optimizer_is_about_to_step() -> None:
    """Nothing is in them but the gradient."""
    bench = Bench()
    bench.backward()
    bench.end()

    for name, values in bench.parts.notes.of(Topic.GRADIENT).items():
        torch.testing.assert_close(values, bench.true[name])
    assert [n.how.scaled for n in bench.notes] == [False, False]


def test_a_disabled_scaler_is_none() -> None:
    """A disabled scaler steps the optimizer itself, and there is no scale."""
    bench = Bench(torch.amp.GradScaler("cpu", enabled=False))
    bench.backward()
    bench.end()

    assert [n.how.scaled for n in bench.notes] == [False, False]


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_has_its_gradients_measured_on_the_spot(*, fused: bool) -> None:
    """Names, counts, inf and NaN are found also in an iteration that is not sampled."""
    bench = Bench(scaler(), fused=fused)
    bench.parts.governor.wanted = frozenset()
    bench.backward()
    bench.end()
    bench.backward(factor=float("inf"))
    bench.end()

    assert [(n.step, n.name) for n in bench.notes] == [(1, "weight"), (1, "bias")]
    assert not any(n.values.isfinite().any() for n in bench.notes)
    # A fused optimizer would have unscaled them in the step that it did not take.
    assert [n.how.scaled for n in bench.notes] == [fused, fused]


def test_a_sampled_iteration_is_not_measured_again_when_it_is_skipped() -> None:
    """The sample was taken already, before the unscaling."""
    bench = Bench(scaler())
    bench.backward(factor=float("inf"))
    bench.end()

    assert len(bench.notes) == 2


def test_an_iteration_that_is_not_sampled_is_left_alone() -> None:
    """With a scaler and without."""
    for made in (scaler(), None):
        bench = Bench(made)
        bench.parts.governor.wanted = frozenset()
        bench.backward()
        bench.end()

        assert bench.notes == []


def test_parameters_without_a_gradient_are_left_out() -> None:
    """A frozen layer has none."""
    bench = Bench()
    bench.model.bias.requires_grad_(requires_grad=False)
    bench.backward()
    bench.end()

    assert [n.name for n in bench.notes] == ["weight"]


def test_a_parameter_of_no_watched_model_is_called_by_its_place() -> None:
    """With model=None nothing else is known of it."""
    parts = Parts([], Topic.GRADIENT)
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    parameter.grad = torch.ones(2)
    parts.install(DirectGradientSensor(parts.context))
    optimizer.step()

    assert [n.name for n in parts.notes.notes] == ["optimizer0.0"]


def test_a_skip_is_measured_before_the_user_clips() -> None:
    """Clipping by a norm that is NaN leaves nothing but NaN, whoever brought it."""
    bench = Bench(scaler())
    bench.parts.governor.wanted = frozenset()
    bench.backward()
    bench.model.bias.grad[0] = float("nan")
    bench.scaler.unscale_(bench.optimizer)
    nn.utils.clip_grad_norm_(bench.model.parameters(), 1.0)
    bench.end()

    measured = bench.parts.notes.of(Topic.GRADIENT)
    assert measured["weight"].isfinite().all()
    assert measured["bias"].isnan().tolist() == [True, False]
    assert len(bench.notes) == 2
    assert bench.parts.governor.skips_taken == 1  # asked after unscale_, not again before update
