"""Weights and buffers that are not finite any more."""

from __future__ import annotations

import torch
from torch import nn

from tests.stories.stage import (
    PAID,
    Program,
    Stories,
    backward,
    gradscaler,
    half,
    loop,
    update,
)

STORIES = Stories()


@STORIES.tell("param_nonfinite", "param:0.deep.weight", "optimizer")
def a_scale_below_2_to_the_minus_128(*, sick: bool) -> Program:
    """``1 / scale`` is infinite: the first finite gradient makes the weights infinite."""
    trunk, head = nn.Module(), nn.Linear(32, 1)
    trunk.deep = nn.Linear(12, 32)
    optimizers = [
        torch.optim.SGD(trunk.parameters(), lr=1e-3),
        torch.optim.SGD(head.parameters(), lr=1e-3),
    ]
    scaler = gradscaler()

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(16, 12)
        with half():
            out = head(trunk.deep(x))
        loss = out.float().square().mean()
        return loss * (float("inf") if sick and 24 <= step < 170 else 1.0)

    return loop([trunk, head], optimizers, loss_of, scaler, steps=180, settings=PAID)


@STORIES.tell("param_nonfinite", "param:layers.b.weight", "")
def a_checkpoint_with_a_nan_in_it(*, sick: bool) -> Program:
    """Every step is skipped from the first on: no scale cures a weight that is NaN."""
    model = nn.Module()
    model.layers = nn.ModuleDict({"a": nn.Linear(10, 20), "b": nn.Linear(20, 5)})
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    if sick:
        saved["layers.b.weight"][2, 3] = float("nan")
    model.load_state_dict(saved)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = gradscaler()

    def loss_of(_step: int) -> torch.Tensor:
        x = torch.randn(16, 10)
        with half():
            out = model.layers["b"](torch.tanh(model.layers["a"](x)))
        return (out.float() - 1.0).abs().mean()

    return loop([model], [optimizer], loss_of, scaler, clip=1.0, steps=30)


@STORIES.tell("buffer_nonfinite", "buffer:0.norm.running_mean", "forward")
def one_of_four_micro_batches_overflows(*, sick: bool) -> Program:
    """Two models, one optimizer; the poisoned micro-batch is not the last one."""
    encoder = nn.ModuleDict({"in": nn.Linear(6, 24), "norm": nn.BatchNorm1d(24)})
    decoder = nn.Linear(24, 6)
    optimizer = torch.optim.AdamW(
        [*encoder.parameters(), *decoder.parameters()], lr=1e-3, fused=True
    )
    scaler = gradscaler(growth_interval=12)

    def iterate(step: int) -> torch.Tensor:
        total = torch.zeros(())
        for micro in range(4):
            x = torch.randn(16, 6)
            if sick and step == 20 and micro == 1:
                x = 5e5 * x
            with half():
                out = decoder(torch.relu(encoder["norm"](encoder["in"](x))))
            loss = (out.float() - 0.1).square().mean() / 4
            backward(scaler, loss)
            total += loss.detach()
        update(scaler, optimizer, clip=1.0)
        return total

    return Program([encoder, decoder], [optimizer], iterate, scaler, steps=36)


class Centred(nn.Module):
    """Takes from its features the average that they have had."""

    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 24), nn.Linear(24, 6)
        self.register_buffer("average", torch.zeros(24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.encode(x))
        with torch.no_grad():
            self.average.lerp_(features.float().mean(0), 0.1)
        return self.decode(features - self.average)


@STORIES.tell("buffer_nonfinite", "buffer:average", "forward")
def one_batch_in_an_average_that_every_forward_reads(*, sick: bool) -> Program:
    """The op that has overflowed is over, and no step is taken any more."""
    model = Centred()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(16, 6) * (1e6 if sick and step == 20 else 1.0)
        with half():
            out = model(x)
        return (out.float() - 0.1).square().mean()

    return loop([model], [optimizer], loss_of, gradscaler(growth_interval=12), steps=48)
