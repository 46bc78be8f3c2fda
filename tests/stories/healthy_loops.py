"""Loops as people write them, each right in a place where others go wrong."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from collections.abc import Callable

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
def classes_that_are_ruled_out_of_the_logits() -> Program:
    """Impossible actions get minus infinity; the chosen one never is one of them."""
    model = net(outputs=8)

    def forward() -> torch.Tensor:
        allowed = torch.rand(32, 8) < 0.5
        y = torch.randint(0, 8, (32,))
        allowed[torch.arange(32), y] = True
        logits = model(torch.randn(32, 16)).masked_fill(~allowed, -math.inf)
        return functional.cross_entropy(logits, y)

    return simple(model, forward, scaler=gradscaler(), steps=STEPS, settings=PAID)


@CONTROLS.add
def batchnorms_of_three_momenta() -> Program:
    """Fast, slow, and a plain average of all batches; evaluated between the steps."""
    layers = [nn.BatchNorm1d(32, momentum=momentum) for momentum in (0.9, 0.001, None)]
    model = nn.Sequential(nn.Linear(16, 32), *layers, nn.ReLU(), nn.Linear(32, 4))
    optimizer, scaler = adamw(model), gradscaler()

    def iterate(step: int) -> torch.Tensor:
        loss = classified(model)
        backward(scaler, loss)
        update(scaler, optimizer)
        if step % 5 == 4:
            model.eval()
            with torch.no_grad(), half():
                model(torch.randn(128, 16))
            with torch.inference_mode():
                model(torch.randn(8, 16))
            model.train()
        return loss

    return Program([model], [optimizer], iterate, scaler, STEPS, settings=PAID)


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


@CONTROLS.add
def nine_tenths_dropped() -> Program:
    """Most activations and their gradients are zero, others each time."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.9), nn.Linear(64, 4))

    return simple(
        model,
        lambda: classified(model, nullcontext),
        scaler=gradscaler(),
        steps=STEPS,
        settings=PAID,
    )


@CONTROLS.add
def a_norm_that_is_only_measured() -> Program:
    """``max_norm=inf`` clips nothing, scaled or not."""
    model = net()
    optimizer, scaler = adamw(model), gradscaler(2.0**12)

    def iterate(_step: int) -> torch.Tensor:
        loss = classified(model)
        backward(scaler, loss)
        scaled = nn.utils.clip_grad_norm_(model.parameters(), math.inf)
        update(scaler, optimizer)
        return loss + 0.0 * scaled.detach()

    return Program([model], [optimizer], iterate, scaler, STEPS, settings=PAID)


@CONTROLS.add
def probabilities_whose_loss_is_taken_in_float32() -> Program:
    """``BCELoss`` on a sigmoid, once outside autocast and once in an island."""
    model = net(outputs=1)
    loss_of = nn.BCELoss()

    def forward() -> torch.Tensor:
        x, y = samples()
        target = (y > 1).float()[:, None]
        with half():
            logits = model(x)
            with full():
                inside = loss_of(logits.float().sigmoid(), target)
        return inside + loss_of(logits.float().sigmoid(), target)

    return simple(model, forward, scaler=gradscaler(), context=full, steps=STEPS, settings=PAID)


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


@CONTROLS.add
def a_step_that_is_left_out_where_the_norm_is_high() -> Program:
    """By hand, with ``update()`` all the same."""
    model = net()
    optimizer, scaler = adamw(model), gradscaler(2.0**12)

    def iterate(step: int) -> torch.Tensor:
        x, y = samples()
        with half():
            loss = functional.cross_entropy(model(x * (50.0 if step % 7 == 6 else 1.0)), y)
        backward(scaler, loss)
        scaler.unscale_(optimizer)
        if nn.utils.clip_grad_norm_(model.parameters(), 5.0) < 10.0:
            scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss

    return Program([model], [optimizer], iterate, scaler, STEPS, settings=PAID)
