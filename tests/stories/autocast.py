"""Casts that are too old, backward passes in the wrong precision, CPUs without instructions."""

from __future__ import annotations

import torch
from torch import nn

from tests.stories.stage import Program, Stories, gradscaler, half, loop

STORIES = Stories()
"""Stories that call ``torch.compile``."""
OF_THE_MACHINE = Stories()
"""Stories that are only wrong on a CPU without instructions for bfloat16."""


@STORIES.tell("compile_backward_autocast", "param:mix", "backward", "bmm")
def a_compiled_function_with_experts_in_float32(*, sick: bool) -> Program:
    """A batched product, a scaler, an Adam: the scale has to fall although eager would not."""
    model = nn.Module()
    model.register_parameter("mix", nn.Parameter(torch.randn(3, 8, 4) / 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    scaler = gradscaler(64.0)

    def energies(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return torch.bmm(x.float(), model.mix)

    torch.compiler.reset()
    compute = torch.compile(energies, backend="aot_eager") if sick else energies

    def loss_of(_step: int) -> torch.Tensor:
        with half():
            out = compute(torch.randn(3, 16, 8))
        return 1e6 * (out - 1.0).square().sum()

    return loop(
        [model], [optimizer], loss_of, scaler, steps=20, shows=lambda run: scaler.get_scale() < 1.0
    )


@OF_THE_MACHINE.tell("cpu_isa_missing", "env", "config")
def bfloat16_on_an_old_server(*, sick: bool) -> Program:
    """A convolution and its head, in two regions."""
    stem, head = nn.Conv1d(4, 8, 3), nn.Linear(8, 3)
    optimizer = torch.optim.Adam([*stem.parameters(), *head.parameters()], lr=1e-3)

    def loss_of(_step: int) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=sick):
            hidden = torch.relu(stem(torch.randn(8, 4, 16))).mean(2)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=sick):
            out = head(hidden)
        return out.float().square().mean()

    return loop([stem, head], [optimizer], loss_of, steps=6)
