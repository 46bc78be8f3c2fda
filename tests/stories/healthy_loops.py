"""Loops as people write them, each right in a place where others go wrong."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tests.stories.healthy import adamw, simple
from tests.stories.stage import (
    PAID,
    Controls,
    Program,
    backward,
    brain,
    full,
    gradscaler,
    half,
    loop,
    update,
)

CONTROLS = Controls()

STEPS = 16


def net(*, outputs: int = 4) -> nn.Sequential:
    """Return a small classifier of 16 features."""
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, outputs))


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    """Return features and the classes they belong to."""
    x = torch.randn(32, 16)
    return x, x[:, :4].argmax(1)


def classified(model: nn.Module, context: Callable[[], Any] = half) -> torch.Tensor:
    """Return the loss of ``model`` on a batch of samples."""
    x, y = samples()
    with context():
        return functional.cross_entropy(model(x), y)


@CONTROLS.add
def no_mixed_precision_at_all() -> Program:
    """Float32, and an optimizer that is stepped as ever."""
    model = net()

    return simple(
        model,
        lambda: classified(model, nullcontext),
        scaler=None,
        context=full,
        steps=STEPS,
        settings=PAID,
    )


@CONTROLS.add
def bfloat16_autocast_without_a_scaler() -> Program:
    """With clipping before the step, where nothing has to be unscaled."""
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
    optimizer = adamw(model, foreach=True)

    def loss_of(_step: int) -> torch.Tensor:
        return classified(model, brain)

    return loop([model], [optimizer], loss_of, clip=0.1, steps=STEPS, settings=PAID)


@CONTROLS.add
def batches_from_a_worker_with_a_remainder() -> Program:
    """A process of its own loads them; the last one of an epoch is smaller; validation follows."""
    model = net()
    optimizer, scaler = adamw(model), gradscaler()
    x = torch.randn(70, 16)
    data = TensorDataset(x, x[:, :4].argmax(1))
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(
        data, 32, shuffle=True, generator=generator, num_workers=1, persistent_workers=True
    )
    losses: list[float] = []

    def iterate(_epoch: int) -> torch.Tensor:
        for features, classes in loader:
            with half():
                loss = functional.cross_entropy(model(features), classes)
            backward(scaler, loss)
            update(scaler, optimizer)
        with torch.no_grad(), half():
            losses.append(functional.cross_entropy(model(x), data.tensors[1]).item())
        return loss

    return Program([model], [optimizer], iterate, scaler, steps=12, settings=PAID)


class _Cube(torch.autograd.Function):
    """A function of the user's, with the decorators that autocast wants."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3.0 * grad * x**2


@CONTROLS.add
def a_function_of_ones_own() -> Program:
    """In float32 there and back."""
    model = net()

    def forward() -> torch.Tensor:
        x, y = samples()
        return functional.cross_entropy(_Cube.apply(model(x)), y)

    return simple(model, forward, scaler=gradscaler(), steps=STEPS, settings=PAID)


@CONTROLS.add
def a_teacher_that_does_not_learn() -> Program:
    """The teacher's forward runs under autocast without gradients; the student's follows."""
    teacher, student = net(), net()
    optimizer, scaler = adamw(student), gradscaler()

    def loss_of(_step: int) -> torch.Tensor:
        x, _ = samples()
        with half():
            with torch.no_grad():
                wanted = (teacher(x) / 2.0).softmax(-1)
            given = (student(x) / 2.0).log_softmax(-1)
            return functional.kl_div(given, wanted.float(), reduction="batchmean")

    return loop([student, teacher], [optimizer], loss_of, scaler, steps=STEPS, settings=PAID)
