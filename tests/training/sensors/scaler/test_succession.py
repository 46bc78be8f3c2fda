"""Succession of scalers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ampwatch
from tests.stories.stage import gradscaler, half


def step(
    model: nn.Module,
    scaler: torch.amp.GradScaler,
    optimizer: torch.optim.Optimizer,
    weight: float = 1.0,
) -> None:
    """Take a step of a small training."""
    with half():
        loss = weight * model(torch.ones(4, 8)).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def test_an_older_scaler_that_goes_on_is_the_watched_one_again() -> None:
    """Both are in use: what the second does is not part of the training that is watched."""
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = gradscaler(64.0)
    second = gradscaler(2.0**30)
    with ampwatch.monitor(model, first, serve=False) as watch:
        for scaler in (first, second, first, second, first, second, first):
            step(model, scaler, optimizer)
        last = watch.last_step

    assert last.loss_scale == 64.0
    assert [f.kind for f in watch.findings if f.kind == "scale_reset"] == []


def test_the_scaler_of_another_model_is_left_alone() -> None:
    """That scaler steps neither the watched optimizer nor watched parameters."""
    models = nn.Linear(8, 2), nn.Linear(8, 2)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
    scalers = gradscaler(64.0), gradscaler(32.0)
    with ampwatch.monitor(models[0], scalers[0], serve=False) as watch:
        for _ in range(3):
            for model, scaler, optimizer in zip(models, scalers, optimizers, strict=True):
                step(model, scaler, optimizer)
        last = watch.last_step

    assert (last.step, last.loss_scale) == (2, 64.0)


@pytest.mark.parametrize("is_one_handed_in", [False, True])
def test_a_scaler_that_was_not_handed_in_is_watched(*, is_one_handed_in: bool) -> None:
    """One for each epoch, and each calibrates anew; that which was handed in is never used."""
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    skips = 0
    given = gradscaler() if is_one_handed_in else None
    with ampwatch.monitor(model, given, level="light", serve=False) as watch:
        for _ in range(2):
            scaler = gradscaler(2.0**16)
            for _ in range(20):
                before = scaler.get_scale()
                step(model, scaler, optimizer, weight=1e4)
                skips += scaler.get_scale() < before
        seen = watch.summary()
        assert watch.is_scaled

    assert skips > 4
    assert (seen["amp/step"], seen["amp/skipped_steps"]) == (39, skips)
    assert seen["amp/loss_scale"] == scaler.get_scale()
    assert seen["amp/loss"] > 0.0
    (found,) = [f for f in watch.findings if f.kind == "scale_reset"]
    assert found.advice.startswith("Make the GradScaler once, before the loop over epochs")


def test_a_scaler_that_is_found_has_the_sensors_of_one_that_was_handed_in() -> None:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with ampwatch.monitor(model, level="deep", serve=False) as watch:
        scaler = gradscaler(2.0**10)
        for _ in range(3):
            step(model, scaler, optimizer)
        norm = watch.gradient_norms()["bias"]
        loss = model(torch.ones(4, 8)).square().mean()
        (true,) = torch.autograd.grad(loss, model.bias, retain_graph=True)
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(4, 8)).square().mean()).backward()
        optimizer.step()

    assert norm == pytest.approx(true.norm().item(), rel=0.1)
    assert {f.kind for f in watch.findings} >= {"clip_before_unscale", "unscaled_step"}
