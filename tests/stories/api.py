"""Code around AMP that runs, and does not do what it should."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from tests.stories.stage import Program, Stories, gradscaler, half

STORIES = Stories()


def mlp(width: int = 24) -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, width), nn.GELU(), nn.Linear(width, 4))


def loss_of(model: nn.Module) -> torch.Tensor:
    with half():
        out = model(torch.randn(16, 12))
    return (out.float() - 1.0).square().mean()


@STORIES.tell("mixed_scaled_backward", "optimizer:0", "backward")
def a_penalty_is_added_to_the_scaled_loss(*, sick: bool) -> Program:
    """One backward, of a sum; the twin adds before it scales."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = gradscaler(2.0**11)

    def iterate(_step: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss, penalty = loss_of(model), 0.01 * model[0].weight.square().sum()
        total = scaler.scale(loss) / 2 + penalty if sick else scaler.scale(loss / 2 + penalty)
        total.backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Program([model], [optimizer], iterate, scaler)


@STORIES.tell("mixed_scaled_backward", "optimizer:0", "backward")
def the_second_micro_batch_comes_after_unscale(*, sick: bool) -> Program:
    """Gradients divided already get a scaled loss on top; the twin unscales in the end."""
    first, second = mlp(), mlp()
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-6) for m in (first, second)]
    scaler = gradscaler(2.0**9)

    def iterate(_step: int) -> torch.Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        scaler.scale(loss_of(first) + loss_of(second)).backward()
        if sick:
            scaler.unscale_(optimizers[0])
        loss = loss_of(first)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        return loss

    return Program([first, second], optimizers, iterate, scaler)


@STORIES.tell("backward_under_autocast", "api", "backward")
def a_region_around_the_whole_loop(*, sick: bool) -> Program:
    """bfloat16 as a decorator of the training step; the twin switches it off for backward."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def iterate(_step: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(torch.randn(16, 12)).float() - 1.0).square().mean()
        with torch.autocast("cpu", enabled=sick, dtype=torch.bfloat16):
            torch.autograd.backward([loss])
        optimizer.step()
        return loss

    return Program([model], [optimizer], iterate)
