"""Succession of scalers."""

from __future__ import annotations

import torch
from torch import nn

import ampwatch
from tests.stories.stage import gradscaler, half


def step(model: nn.Module, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
    """Take a step of a small training."""
    with half():
        loss = model(torch.ones(4, 8)).float().square().mean()
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
