"""Losses that are float16 themselves."""

from __future__ import annotations

import torch
from torch import nn

from tests.stories.stage import Program, Stories, gradscaler, half, loop

STORIES = Stories()


@STORIES.tell("fp16_loss_caps_scale", "loss", "backward")
def a_loss_of_ones_own_computed_under_autocast(*, sick: bool) -> Program:
    """A Charbonnier loss: its result is float16, and so is the scale that it is multiplied by."""
    model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    scaler = gradscaler()

    def loss_of(_step: int) -> torch.Tensor:
        x = torch.randn(16, 16)
        with half():
            out = model(x)
            error = (out if sick else out.float()) - 0.5
            return (error * error + 1e-3).sqrt().mean()

    return loop([model], [optimizer], loss_of, scaler, clip=1.0)


@STORIES.tell("fp16_loss_caps_scale", "loss", "backward")
def a_float16_loss_whose_scale_grows_to_65536_later(*, sick: bool) -> Program:
    """Nothing is wrong until the second growth, and then once per growth interval."""
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    scaler = gradscaler(2.0**14, growth_interval=9)

    def loss_of(_step: int) -> torch.Tensor:
        x = torch.randn(16, 8)
        with half():
            loss = (model(x) - x.half()).abs().mean()
        return loss if sick else loss.float()

    return loop([model], [optimizer], loss_of, scaler, steps=36)
