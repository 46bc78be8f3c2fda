"""Code around AMP that runs, and does not do what it should."""

from __future__ import annotations

import torch
from torch import nn

from tests.stories.stage import Program, Stories, gradscaler, half

STORIES = Stories()


def mlp(width: int = 24) -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, width), nn.GELU(), nn.Linear(width, 4))


def loss_of(model: nn.Module) -> torch.Tensor:
    with half():
        out = model(torch.randn(16, 12))
    return (out.float() - 1.0).square().mean()


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
