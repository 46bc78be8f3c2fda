"""A loss scale that a burst has brought down, and that does not come back."""

from __future__ import annotations

import torch
from torch import nn

from tests.stories.stage import PAID, Program, Stories, backward, gradscaler, half, update

STORIES = Stories()


@STORIES.tell("scale_stuck_low", "param:0.weight", "backward")
def ten_broken_batches_and_the_default_growth_interval(*, sick: bool) -> Program:
    """From 65536 to 64 in ten steps, and 20000 steps to go back. The twin drops such batches."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = gradscaler()

    def iterate(step: int) -> torch.Tensor:
        x = torch.randn(32, 32)
        if 22 <= step < 32:
            if not sick:
                return torch.zeros(())
            x = 1e6 * x
        with half():
            out = model(x)
        loss = 5e-7 * out.float().square().mean()
        backward(scaler, loss)
        update(scaler, optimizer)
        return loss

    return Program([model], [optimizer], iterate, scaler, steps=70, settings=PAID)
