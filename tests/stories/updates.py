"""Optimizer steps that are lost, or divide by zero, in the precision of the weights."""

from __future__ import annotations

import torch
from torch import nn

from tests.stories.stage import Program, Stories, gradscaler, half, loop

STORIES = Stories()


@STORIES.tell("update_rounding", "param:2.weight", "optimizer")
def bfloat16_weights_with_the_rate_of_a_fine_tuning(*, sick: bool) -> Program:
    """AdamW moves by 1e-6 what is spaced by 1e-3; the twin has float32 weights."""
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 64), nn.Linear(64, 8))
    model.to(torch.bfloat16 if sick else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0, fused=True)

    def loss_of(_step: int) -> torch.Tensor:
        x = torch.randn(32, 16, dtype=model[0].weight.dtype)
        return (model(x).float() - 0.3).square().mean()

    return loop([model], [optimizer], loss_of, steps=32)


@STORIES.tell("optimizer_eps_underflow", "param:0.weight", "optimizer")
def rmsprop_of_float16_weights(*, sick: bool) -> Program:
    """A dead unit is enough: its gradient of zero is divided by zero. The twin has float32 weights and state."""
    model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 8))
    model.to(torch.float16 if sick else torch.float32)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    scaler = None if sick else gradscaler()

    def loss_of(_step: int) -> torch.Tensor:
        x = torch.randn(32, 16, dtype=model[0].weight.dtype)
        with half():
            out = model(x)
        return (out.float() - 0.1).square().mean()

    return loop([model], [optimizer], loss_of, scaler, steps=12)
