"""Gradients that a program limits itself, before and after they are unscaled."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.training.sensors.calls import hand_clips
from ampwatch.training.sensors.calls.hand_clips import HandClips

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.wire.records import Finding

pytestmark = pytest.mark.usefixtures("one_thread")

SCALE = 4096.0
LIMIT = 0.5

Clip = "Callable[[list[nn.Parameter]], None]"


def train(
    clip: Clip,
    *,
    unscales: bool = False,
    hook: Callable[[Any], Any] | None = None,
    accumulated: Callable[[Any], None] | None = None,
) -> list[Finding]:
    """Return what is said of clipping in a training whose gradients differ from step to step."""
    return run(clip, "deep", unscales=unscales, hook=hook, accumulated=accumulated)[1]


def run(
    clip: Clip,
    level: str,
    *,
    unscales: bool = False,
    hook: Callable[[Any], Any] | None = None,
    accumulated: Callable[[Any], None] | None = None,
) -> tuple[list[torch.Tensor], list[Finding]]:
    """Return the weights in the end as well; with level ``off`` nothing is watched."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    parameters = list(model.parameters())
    for parameter in parameters:
        if hook is not None:
            parameter.register_hook(hook)
        if accumulated is not None:
            parameter.register_post_accumulate_grad_hook(accumulated)

    def loop() -> None:
        for step in range(12):
            x = torch.randn(16, 8) * (1.0 + step % 4)
            with torch.autocast("cpu", dtype=torch.float16):
                out = model(x)
            optimizer.zero_grad()
            scaler.scale((out.float() - 1.0).square().mean()).backward()
            if unscales:
                scaler.unscale_(optimizer)
            with torch.no_grad():
                clip(parameters)
            scaler.step(optimizer)
            scaler.update()

    if level == "off":
        loop()
        return parameters, []
    with ampwatch.monitor(model, scaler, level=level, serve=False) as watch:
        loop()
        assert not any(guard.off for guard in watch._session.bus.guards)
    return parameters, [f for f in watch.findings if f.kind == "clip_before_unscale"]


def _norm(parameters: list[nn.Parameter]) -> torch.Tensor:
    return torch.stack([p.grad.norm() for p in parameters]).norm()


def nothing(_parameters: list[nn.Parameter]) -> None:
    """Leave gradients alone."""


def by_norm(parameters: list[nn.Parameter]) -> None:
    """As tutorials did before there was a function for it."""
    factor = LIMIT / (_norm(parameters) + 1e-6)
    if factor < 1.0:
        for p in parameters:
            p.grad.mul_(factor)


def by_norm_of_all(parameters: list[nn.Parameter]) -> None:
    """In one call."""
    factor = float(LIMIT / _norm(parameters))
    if factor < 1.0:
        torch._foreach_mul_([p.grad for p in parameters], factor)


def by_norm_divided(parameters: list[nn.Parameter]) -> None:
    """By how much it is too large."""
    excess = _norm(parameters) / LIMIT
    if excess > 1.0:
        for p in parameters:
            p.grad.data.div_(excess)


def by_weight(parameters: list[nn.Parameter]) -> None:
    """Adaptively, as of Brock et al.: each gradient to a share of its weight."""
    for p in parameters:
        most, norm = 0.02 * p.norm().clamp(min=1e-3), p.grad.norm()
        p.grad.copy_(torch.where(norm < most, p.grad, p.grad * (most / norm)))


def by_assignment(parameters: list[nn.Parameter]) -> None:
    """A new gradient takes the place of the old one."""
    for p in parameters:
        p.grad = p.grad * (0.1 * LIMIT / p.grad.norm()).clamp(max=1.0)


def by_value(parameters: list[nn.Parameter]) -> None:
    """Each element by itself."""
    for p in parameters:
        p.grad.data.clamp_(-LIMIT, LIMIT)


CLIPS = [by_norm, by_norm_of_all, by_norm_divided, by_weight, by_assignment, by_value]


@pytest.mark.rotating
@pytest.mark.parametrize("clip", CLIPS)
def test_a_clip_by_hand_before_unscaling_is_named(clip: Clip) -> None:
    """With the optimizer, and the line."""
    (finding,) = train(clip)

    assert (finding.where, finding.phase) == ("optimizer:0", "optimizer")
    assert finding.evidence["loss_scale"] == SCALE
    assert "test_hand_clips.py" in finding.source


@pytest.mark.rotating
@pytest.mark.parametrize("clip", CLIPS)
def test_a_clip_by_hand_after_unscaling_is_right(clip: Clip) -> None:
    """Its gradients are what they are."""
    assert train(clip, unscales=True) == []


@pytest.mark.rotating
@pytest.mark.parametrize("clip", [by_weight, by_assignment])
def test_the_training_is_what_it_is_unwatched(clip: Clip) -> None:
    """Bit for bit, hooks included."""

    def limited(gradient: torch.Tensor) -> torch.Tensor:
        return gradient.clamp(-1e3, 1e3)

    bare, _ = run(clip, "off", hook=limited)
    watched, _ = run(clip, "deep", hook=limited)

    assert all(map(torch.equal, bare, watched))


def test_a_limit_in_a_hook_is_named() -> None:
    """Backward hands it gradients that are scaled."""
    (finding,) = train(nothing, hook=lambda gradient: gradient.clamp(-LIMIT, LIMIT))

    assert finding.evidence["limit"] == LIMIT
    assert "clamp limited gradients of optimizer 0 to 0.5" in finding.summary


def test_a_limit_after_accumulation_is_named() -> None:
    """Backward is still running."""

    def to_unit(parameter: Any) -> None:
        parameter.grad.div_(parameter.grad.norm())

    (finding,) = train(nothing, accumulated=to_unit)

    assert "The program itself has limited 4 gradients" in finding.summary


def test_limits_and_dtypes_may_differ() -> None:
    """A limit that float32 has no number for is compared as it is rounded; the first one is told."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    with ampwatch.monitor(model, scaler, level="deep", serve=False) as watch:
        for _ in range(3):
            optimizer.zero_grad()
            out = model[1](model[0](torch.randn(16, 8)).double())
            scaler.scale((out - 1.0).square().mean()).backward()
            with torch.no_grad():
                for p, limit in zip(model.parameters(), (0.1, 1e9, 0.3, 1e9), strict=True):
                    p.grad.clamp_(-limit, limit)
            scaler.step(optimizer)
            scaler.update()
        assert not any(guard.off for guard in watch._session.bus.guards)

    (finding,) = (f for f in watch.findings if f.kind == "clip_before_unscale")
    assert (finding.evidence["limit"], finding.count) == (0.1, 3)


@pytest.mark.rotating
@pytest.mark.parametrize(
    "hook",
    [
        lambda gradient: gradient.clamp(-1e6, 1e6),
        torch.nan_to_num,
        lambda gradient: 0.5 * gradient,
    ],
    ids=["beyond", "numbers", "half"],
)
def test_a_hook_that_limits_nothing_is_right(hook: Callable[[Any], Any]) -> None:
    """It may look for what is not finite, or weigh."""
    assert train(nothing, hook=hook) == []


def averaged(parameters: list[nn.Parameter]) -> None:
    """Over micro-batches."""
    for p in parameters:
        p.grad.div_(128)


def averaged_by_tokens(parameters: list[nn.Parameter]) -> None:
    """Of a loss that is summed: what is left is more alike than what was there."""
    tokens = 100.0 * (1.0 + float(_norm(parameters)) ** 0.8 / 1e3)
    for p in parameters:
        p.grad.div_(tokens)


def limited_without_scale(parameters: list[nn.Parameter]) -> None:
    """By hand from beginning to end: unscaled, clamped, and scaled again for the scaler."""
    for p in parameters:
        p.grad.div_(SCALE).clamp_(-LIMIT, LIMIT).mul_(SCALE)


def masked(parameters: list[nn.Parameter]) -> None:
    """As of pruned weights."""
    for p in parameters:
        p.grad.mul_((p.abs() > 0.2).float())


def reduced(parameters: list[nn.Parameter]) -> None:
    """With what another replica has found."""
    for p in parameters:
        p.grad.copy_((p.grad + 0.1 * p.grad.flip(0)) / 200)


def limited_for_scale(parameters: list[nn.Parameter]) -> None:
    """To a limit that is multiplied by the scale."""
    factor = SCALE * LIMIT / _norm(parameters)
    for p in parameters:
        p.grad.mul_(min(float(factor), 1.0))


@pytest.mark.rotating
@pytest.mark.parametrize(
    "change",
    [averaged, averaged_by_tokens, limited_without_scale, masked, reduced, limited_for_scale],
)
def test_what_is_as_right_with_the_scale_as_without_is_left_alone(change: Clip) -> None:
    """A factor, however small, and a mask leave more where there is more."""
    assert train(change) == []


@pytest.mark.parametrize(
    "clip",
    [
        lambda parameters: nn.utils.clip_grad_norm_(parameters, LIMIT),
        lambda parameters: nn.utils.clip_grad_value_(parameters, LIMIT),
    ],
    ids=["norm", "value"],
)
def test_functions_of_pytorch_are_reported_once_a_step(clip: Clip) -> None:
    """By the sensor that hears of the call: with its name and its limit."""
    (finding,) = train(clip)

    assert "clip_grad_" in finding.summary
    assert finding.count == 12


def test_nothing_is_looked_at_in_iterations_whose_ops_are_not_observed() -> None:
    """It sleeps, and refers to no gradient."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    with ampwatch.monitor(model, scaler, level="standard", serve=False) as watch:
        (sensor,) = (s for s in watch._session.bus.sensors if isinstance(s, HandClips))
        slept = []
        for _ in range(100):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(2, 4)).sum()).backward()
            with torch.no_grad():
                by_value(list(model.parameters()))
            slept.append(sensor.is_dormant)
            scaler.step(optimizer)
            scaler.update()
        assert sensor._gradients is None or not sensor.is_dormant

    assert True in slept


def test_a_clamp_is_told_where_the_host_does_not_know_the_scale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a device: the scale arrives later."""
    monkeypatch.setattr(hand_clips, "scale_on_host", lambda _scaler: math.nan)

    (finding,) = train(by_value)

    assert finding.evidence["loss_scale"] == SCALE


def test_each_optimizer_has_gradients_of_its_own() -> None:
    """Those of the second one are looked at when they are unscaled."""
    torch.manual_seed(0)
    models = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 1)])
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in models]
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    with ampwatch.monitor(models, scaler, optimizer=optimizers, level="deep", serve=False) as watch:
        for step in range(12):
            with torch.autocast("cpu", dtype=torch.float16):
                out = models[1](models[0](torch.randn(16, 8) * (1.0 + step % 4)))
            models.zero_grad()
            scaler.scale((out.float() - 1.0).square().mean()).backward()
            with torch.no_grad():
                by_norm(list(models[1].parameters()))
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()

    assert [f.where for f in watch.findings if f.kind == "clip_before_unscale"] == ["optimizer:1"]
