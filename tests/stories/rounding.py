"""Sums of something large and something small: gradients of micro-batches, averages of weights."""

from __future__ import annotations

import copy

import torch
from torch import nn

from tests.stories.stage import Program, Stories, backward, update

STORIES = Stories()

SAMPLES = 640
"""Micro-batches of one step: bfloat16 loses one of 256 equal summands, and all beyond 512."""


@STORIES.tell("grad_accum_rounding", "param:head.weight", "backward")
def a_probe_that_goes_back_from_each_sample_by_itself(*, sick: bool) -> Program:
    """A frozen bfloat16 body, and a head that is trained sample by sample, one step per epoch."""
    kept = torch.bfloat16 if sick else torch.float32
    model = nn.Module()
    model.body = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten())
    model.head = nn.Linear(24, 1, bias=False)
    model.body.requires_grad_(requires_grad=False)
    model.to(kept)
    optimizer = torch.optim.SGD([model.head.weight], lr=0.1)
    exact = torch.zeros(1, 24, dtype=torch.float64)
    lost: list[float] = []

    def iterate(_step: int) -> torch.Tensor:
        total = torch.zeros(())
        exact.zero_()
        features = model.body(1.0 + torch.rand(SAMPLES, 1, 8).to(kept))
        for sample in features:
            loss = -model.head(sample).float().sum() / SAMPLES
            backward(None, loss)
            total += loss.detach()
            exact.sub_(sample.double() / SAMPLES)
        gradient = model.head.weight.grad.double()
        lost.append(float((gradient - exact).norm() / exact.norm()))
        update(None, optimizer)
        return total

    return Program([model], [optimizer], iterate, steps=1, shows=lambda run: min(lost) > 0.1)


def a_target_network_that_is_copied_now_and_then() -> Program:
    """bfloat16, but a copy is exact: between the copies nothing is to move."""
    online = nn.Linear(8, 8, bias=False).bfloat16()
    target = copy.deepcopy(online).requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(online.parameters(), lr=0.5)

    def iterate(step: int) -> torch.Tensor:
        x = torch.randn(16, 8).bfloat16()
        loss = (online(x).float() - 1.0 - 0.5 * target(x).float()).square().mean()
        backward(None, loss)
        update(None, optimizer)
        if step % 10 == 9:
            with torch.no_grad():
                target.weight.copy_(online.weight)
        return loss

    return Program([online, target], [optimizer], iterate, steps=32)


CONTROLS = (a_target_network_that_is_copied_now_and_then,)
