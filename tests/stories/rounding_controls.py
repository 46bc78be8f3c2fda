"""Trainings that are well, with casts, sums and averages that look like ones that are not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.stories.fp8_casts import Quantized, current, trained
from tests.stories.stage import Controls, Program, backward, brain, update

CONTROLS = Controls()


def looped(
    model: nn.Module,
    loss_of: Callable[[int], torch.Tensor],
    after: Callable[[int, torch.Tensor], Any] = lambda _step, _loss: None,
    steps: int = 24,
    lr: float = 1e-3,
) -> Program:
    """Return the plain loop, with something that is done after each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)

    def iterate(step: int) -> torch.Tensor:
        loss = loss_of(step)
        backward(None, loss)
        update(None, optimizer)
        after(step, loss.detach())
        return loss

    return Program([model], [optimizer], iterate, steps=steps)


@CONTROLS.add
def pictures_masks_and_labels_in_bfloat16() -> Program:
    """Integers up to 255 fit; so do zeros and ones, one-hot labels, and a constant of 65504."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 10))

    def loss_of(_step: int) -> torch.Tensor:
        pictures = torch.randint(0, 256, (16, 3, 16, 16), dtype=torch.uint8)
        labels = nn.functional.one_hot(torch.randint(0, 10, (16,)), 10).to(torch.bfloat16)
        mask = torch.ones(16, 10).tril().to(torch.bfloat16)
        limit = torch.full((16, 10), 65504).to(torch.float16).to(torch.bfloat16)
        with brain():
            out = model(pictures.to(torch.bfloat16))
            return (((out - labels) * mask).clamp(max=limit)).float().square().mean() * 1e-4

    return looped(model, loss_of)


@CONTROLS.add
def averages_that_move_or_have_arrived() -> Program:
    """One in float32, one that takes a fifth each time, one of weights that do not change."""
    model = nn.ModuleDict({"live": nn.Linear(8, 8), "still": nn.Linear(8, 8)}).bfloat16()
    model["still"].requires_grad_(requires_grad=False)
    exact = copy.deepcopy(model).float()
    quick, same = copy.deepcopy(model["live"]), copy.deepcopy(model["still"])

    def loss_of(_step: int) -> torch.Tensor:
        x = torch.randn(32, 8, dtype=torch.bfloat16)
        return (model["still"](model["live"](x)).float() - 1.0).square().mean()

    @torch.no_grad()
    def after(_step: int, _loss: torch.Tensor) -> None:
        for mine, theirs in zip(exact.parameters(), model.parameters(), strict=True):
            mine.mul_(0.999).add_(theirs.float(), alpha=0.001)
        for mine, theirs in zip(quick.parameters(), model["live"].parameters(), strict=True):
            mine.lerp_(theirs, 0.2)
        for mine, theirs in zip(same.parameters(), model["still"].parameters(), strict=True):
            mine.mul_(0.999).add_(theirs, alpha=0.001)

    return looped(model, loss_of, after, lr=0.05)


@CONTROLS.add
def sums_in_bfloat16_that_are_begun_anew() -> Program:
    """A running loss of an epoch, a counter that is given zeros, an epsilon that is too small."""
    model = nn.Linear(8, 2)
    kept = {
        "total": torch.zeros((), dtype=torch.bfloat16),
        "bad": torch.zeros(1, dtype=torch.bfloat16),
        "scale": torch.ones((), dtype=torch.bfloat16),
    }

    def loss_of(_step: int) -> torch.Tensor:
        x = torch.randn(16, 8)
        return nn.functional.cross_entropy(model(x), torch.randint(0, 2, (16,)))

    def after(step: int, loss: torch.Tensor) -> None:
        if step % 12 == 0:
            kept["total"].zero_()
        kept["total"] += loss
        kept["bad"] += float(loss.isnan())
        safe = kept["scale"] + 1e-8
        assert safe > 0

    return looped(model, loss_of, after, steps=40)


@CONTROLS.add
def a_few_micro_batches_in_bfloat16() -> Program:
    """Sixteen backward passes a step lose next to nothing."""
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 2)).bfloat16()

    def loss_of(_step: int) -> torch.Tensor:
        for _ in range(15):
            x = torch.randn(8, 8, dtype=torch.bfloat16)
            backward(None, model(x).float().square().mean())
        return model(torch.randn(8, 8, dtype=torch.bfloat16)).float().square().mean()

    return looped(model, loss_of, steps=4, lr=0.02)


@CONTROLS.add
def float8_with_the_scale_of_this_very_tensor() -> Program:
    """The largest element is at the end of the format; ReLUs give zeros, a batch is all zeros."""
    layer = Quantized((32, 8), current)
    return trained(layer, lambda step: torch.randn(64, 32).relu() * float(step != 3))
