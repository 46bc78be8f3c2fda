"""Tensors that do not fit into eight bits, written with the casts of plain PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.stories.stage import Program, Stories, backward, loop, update

STORIES = Stories()

E4M3 = torch.float8_e4m3fn
E5M2 = torch.float8_e5m2


class _Quantise(torch.autograd.Function):
    """To eight bits and back; the gradient goes straight through."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        return (x * scale).to(E4M3).to(x.dtype) / scale

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class _Float8Weight(nn.Linear):
    """A linear layer whose weight is multiplied in eight bits."""

    scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = _Quantise.apply(self.weight, self.scale)
        out: torch.Tensor = nn.functional.linear(x, weight, self.bias)
        return out


@STORIES.tell("fp8_underflow", "up", "forward", "_to_copy")
def weights_of_a_small_initialisation_without_a_scale(*, sick: bool) -> Program:
    """A deviation of 2e-4 is below the smallest number of the format: all of the layer is zero."""
    model = nn.Module()
    model.up = _Float8Weight(16, 40)
    model.down = nn.Linear(40, 16)
    nn.init.normal_(model.up.weight, std=2e-4)
    model.up.scale = 1.0 if sick else 2.0**16
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-7, foreach=True)
    flushed: list[float] = []

    def iterate(_step: int) -> torch.Tensor:
        x = torch.randn(16, 16)
        out = model.down(torch.relu(model.up(x)))
        loss = (out - x).square().mean()
        backward(None, loss)
        update(None, optimizer)
        kept = (model.up.weight * model.up.scale).to(E4M3).float()
        flushed.append(float((kept == 0).float().mean()))
        return loss

    return Program([model], [optimizer], iterate, shows=lambda run: min(flushed) > 0.8)


class _Blockwise(nn.Module):
    """A convolution whose input is quantised channel by channel, as x / (amax / largest)."""

    def __init__(self, *, bounded: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(6, 2, 3, padding=1)
        self.least = 1e-12 if bounded else 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        amax = x.detach().abs().amax((0, 2, 3), keepdim=True).clamp(min=self.least)
        steps = amax / torch.finfo(E5M2).max
        kept = (x.detach() / steps).to(E5M2).float() * steps
        out: torch.Tensor = self.conv(x + (kept - x.detach()))
        return out


@STORIES.tell("fp8_scale_nonfinite", "neck", "forward", "div")
def a_dead_channel_that_is_quantised_by_its_own_amax(*, sick: bool) -> Program:
    """ReLU has killed a channel; the step of its block is 0, and so is what is divided by it."""
    model = nn.Module()
    model.stem = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU())
    model.neck = _Blockwise(bounded=not sick)
    with torch.no_grad():
        model.stem[0].bias[2] = -50.0
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)

    def loss_of(_step: int) -> torch.Tensor:
        x = torch.randn(4, 1, 6, 6)
        return (model.neck(model.stem(x)) - x).square().mean()

    return loop([model], [optimizer], loss_of, shows=lambda run: run.has_no_finite_loss)
