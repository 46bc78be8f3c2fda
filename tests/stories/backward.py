"""Slopes that are infinite, whatever the loss is multiplied by."""

from __future__ import annotations

import math

import torch
from torch import nn

from tests.stories.stage import Program, Stories, gradscaler, half, loop

STORIES = Stories()


@STORIES.tell("backward_nonfinite_any_scale", "param:render.weight", "backward", "pow")
def a_renderer_whose_gamma_is_applied_to_black(*, sick: bool) -> Program:
    """``sigmoid(-20)`` is 0 in float16, and x ** 0.45 is vertical there. Only the last layer learns."""
    model = nn.Module()
    model.field = nn.Sequential(nn.Linear(3, 16), nn.ReLU())
    model.render = nn.Linear(16, 3, bias=False)
    model.field.requires_grad_(requires_grad=False)
    with torch.no_grad():
        model.field[0].bias.fill_(2.0)
        model.render.weight.fill_(-1.0)
    optimizer = torch.optim.Adam([model.render.weight], lr=1e-4)
    scaler = gradscaler(2.0**12)

    def loss_of(_step: int) -> torch.Tensor:
        rays = torch.rand(32, 3)
        with half():
            density = model.render(model.field(rays))
            light = torch.sigmoid(density if sick else density.float()) + (0.0 if sick else 1e-3)
            colour = light.pow(1.0 / 2.2)
        return (colour.float() - 0.2).square().mean()

    return loop(
        [model],
        [optimizer],
        loss_of,
        scaler,
        steps=24,
        shows=lambda run: all(map(math.isfinite, run.losses)) and scaler.get_scale() < 1e-2,
    )


def norms_of_vectors_that_are_zero() -> Program:
    """PyTorch divides by the zero length in backward, and says that the slope is 0 there."""
    model = nn.Linear(6, 8, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = gradscaler(2.0**8)

    def loss_of(_step: int) -> torch.Tensor:
        x = torch.randn(12, 6)
        x[4:7] = 0.0
        with half():
            h = model(x)
            penalty = (h.norm(dim=1).float() - 1.0).square().mean()
            spread = h.float().std(1).mean()
        return penalty + spread

    return loop([model], [optimizer], loss_of, scaler)


CONTROLS = (norms_of_vectors_that_are_zero,)
