"""Outputs that grow towards the end of float16."""

from __future__ import annotations

import torch
from torch import nn

from tests.stories.stage import PAID, Program, Stories, backward, gradscaler, half, update

STORIES = Stories()


@STORIES.tell("headroom_low", "blocks.1.out", "forward")
def a_residual_branch_that_doubles_every_eight_steps(*, sick: bool) -> Program:
    """Weights grow with a step too large for them; the twin's is a hundredth of it."""
    model = nn.Module()
    model.blocks = nn.ModuleList(nn.ModuleDict({"out": nn.Linear(16, 16)}) for _ in range(2))
    model.norm = nn.LayerNorm(16)
    with torch.no_grad():
        model.blocks[1]["out"].weight.mul_(40.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4.0 if sick else 1e-3, weight_decay=0.0)
    scaler = gradscaler(1024.0)

    def iterate(step: int) -> torch.Tensor:
        x = torch.randn(32, 16)
        with half():
            hidden = x + nn.functional.gelu(model.blocks[0]["out"](x))
            out = model.blocks[1]["out"](hidden)
        if not out.isfinite().all() and program.overflowed_at < 0:
            program.overflowed_at = step
        loss = -(1.0 + out.float().abs()).log().mean()
        backward(scaler, loss)
        update(scaler, optimizer)
        return loss

    program = Program([model], [optimizer], iterate, scaler, steps=60, settings=PAID)
    return program
