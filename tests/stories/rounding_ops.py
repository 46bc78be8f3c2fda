"""Values that single ops round away: positions, sums, averages, accumulated gradients."""

from __future__ import annotations

import torch
from torch import nn

from tests.stories.stage import Program, Stories, loop

STORIES = Stories()


@STORIES.tell("lossy_integer_cast", "rope", "forward", "_to_copy")
def positions_that_are_cast_to_bfloat16_before_their_angles(*, sick: bool) -> Program:
    """Of six hundred positions the later ones have the angles of their neighbours."""

    class Rope(nn.Module):
        def forward(self, states: torch.Tensor) -> torch.Tensor:
            positions = torch.arange(states.shape[1])
            positions = positions.to(torch.bfloat16 if sick else torch.float32)
            return states * (positions[:, None].float() * 0.1).cos()

    model = nn.Sequential()
    model.add_module("rope", Rope())
    model.add_module("head", nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def loss_of(_step: int) -> torch.Tensor:
        return model(torch.randn(4, 600, 8)).square().mean()

    return loop([model], [optimizer], loss_of, steps=6)


@STORIES.tell("metric_accum_rounding", "pool", "forward", "add")
def a_mean_over_time_that_is_added_up_in_bfloat16(*, sick: bool) -> Program:
    """Six hundred steps, of which those after the third hundred no longer count in full."""

    class Pool(nn.Module):
        def forward(self, states: torch.Tensor) -> torch.Tensor:
            states = states if sick else states.float()
            total = torch.zeros_like(states[:, 0])
            for state in states.unbind(1):
                total = total + state
            return total.float() / states.shape[1]

    model = nn.Sequential()
    model.add_module("step", nn.Linear(4, 8))
    model.add_module("pool", Pool())
    model.add_module("head", nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def loss_of(_step: int) -> torch.Tensor:
        states = model.step(torch.randn(4, 600, 4)).sigmoid().bfloat16()
        return model.head(model.pool(states)).square().mean()

    return loop([model], [optimizer], loss_of, steps=6)


@STORIES.tell("metric_accum_rounding", "buffer:seen.count", "forward")
def a_counter_of_batches_in_a_model_of_float16(*, sick: bool) -> Program:
    """A buffer that counts goes to float16 with its module: 2048 and 1 are 2048."""

    class Seen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.tensor(2038.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x

    model = nn.Sequential()
    model.add_module("seen", Seen().to(torch.float16 if sick else torch.float32))
    model.add_module("head", nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def loss_of(_step: int) -> torch.Tensor:
        return model(torch.randn(8, 8)).square().mean()

    return loop([model], [optimizer], loss_of, steps=24)


@STORIES.tell("ema_rounding", "buffer:norm.running_var", "forward", "native_batch_norm")
def statistics_of_a_norm_that_stay_at_one(*, sick: bool) -> Program:
    """A slow BatchNorm in bfloat16: the fused kernel takes a thousandth, and rounds it away."""
    model = nn.Sequential()
    model.add_module("stem", nn.Linear(8, 32))
    model.add_module("norm", nn.BatchNorm1d(32, momentum=1e-3, affine=False))
    model.add_module("head", nn.Linear(32, 2))
    model.norm.to(torch.bfloat16 if sick else torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def loss_of(_step: int) -> torch.Tensor:
        hidden = model.stem(torch.randn(64, 8)).bfloat16()
        return model.head(model.norm(hidden).float()).square().mean()

    return loop([model], [optimizer], loss_of, steps=60)
