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


@STORIES.tell("scale_stuck_low", "param:1.tokens.weight", "backward")
def a_burst_through_two_optimizers_and_micro_batches(*, sick: bool) -> Program:
    """Growth every 500 steps is too slow as well; the twin, after two bad batches, grows every 12."""
    front = nn.Linear(24, 24)
    back = nn.Module()
    back.tokens = nn.Linear(24, 80)
    optimizers = [
        torch.optim.AdamW(front.parameters(), lr=1e-4, fused=True),
        torch.optim.AdamW(back.parameters(), lr=1e-4, fused=True),
    ]
    scaler = gradscaler(2.0**18, growth_interval=500 if sick else 12)

    def iterate(step: int) -> torch.Tensor:
        total = torch.zeros(())
        for micro in range(2):
            x = torch.randn(16, 24)
            broken = 25 <= step < (34 if sick else 27)
            with half():
                logits = back.tokens(nn.functional.gelu(front(x)))
            loss = 3e-8 * nn.functional.cross_entropy(logits.float(), torch.randint(0, 80, (16,)))
            loss = loss * (1e14 if broken and micro else 1.0)
            backward(scaler, loss)
            total += loss.detach()
        update(scaler, *optimizers, clip=1.0)
        return total

    return Program([front, back], optimizers, iterate, scaler, steps=80, settings=PAID)
