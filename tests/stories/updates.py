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


@STORIES.tell("update_rounding", "param:1.norm.weight", "optimizer")
def norms_of_one_that_never_move(*, sick: bool) -> Program:
    """Only the norm's gains, all 1, are too large for the steps; the other weights learn."""
    front = nn.Linear(12, 64)
    back = nn.ModuleDict({"norm": nn.LayerNorm(64, bias=False), "head": nn.Linear(64, 4)})
    for part in (front, back["head"]):
        nn.init.normal_(part.weight, std=0.02)
        nn.init.zeros_(part.bias)
    front.bfloat16()
    back.bfloat16()
    if not sick:
        back["norm"].float()
    optimizer = torch.optim.AdamW(
        [*front.parameters(), *back.parameters()], lr=1e-3, foreach=True, weight_decay=0.0
    )

    def loss_of(_step: int) -> torch.Tensor:
        x = torch.randn(32, 12, dtype=torch.bfloat16)
        hidden = front(x).to(back["norm"].weight.dtype)
        logits = back["head"](back["norm"](hidden).bfloat16())
        return nn.functional.cross_entropy(logits.float(), torch.randint(0, 4, (32,)))

    return loop([front, back], [optimizer], loss_of, clip=1.0, steps=32)


def _pure_float16(
    make: type[torch.optim.Optimizer], *, sick: bool, amplitude: float, **options: float | bool
) -> Program:
    """Train a model of float16 weights; the twin keeps weights and state in float32."""
    model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 8))
    model.to(torch.float16 if sick else torch.float32)
    optimizer = make(model.parameters(), lr=1e-3, **options)  # type: ignore[call-arg]
    scaler = None if sick else gradscaler()

    def loss_of(_step: int) -> torch.Tensor:
        x = torch.randn(32, 16, dtype=model[0].weight.dtype)
        with half():
            out = model(x)
        return amplitude * (out.float() - 0.1).square().mean()

    return loop([model], [optimizer], loss_of, scaler, steps=12)


@STORIES.tell("optimizer_eps_underflow", "param:0.weight", "optimizer")
def rmsprop_of_float16_weights(*, sick: bool) -> Program:
    """A dead unit is enough: its gradient of zero is divided by zero."""
    return _pure_float16(torch.optim.RMSprop, sick=sick, amplitude=1.0)


@STORIES.tell("optimizer_eps_underflow", "param:0.weight", "optimizer")
def adam_of_float16_weights_with_hardly_a_gradient(*, sick: bool) -> Program:
    """Gradients are flushed as well; that is not what breaks the weights."""
    return _pure_float16(torch.optim.Adam, sick=sick, amplitude=1e-4)
