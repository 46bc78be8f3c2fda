"""Loops around a scaler that are written wrongly, and learn badly for it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_value_

from tests.stories.stage import Program, Stories, backward, brain, gradscaler, half, loop, update

STORIES = Stories()
ERRORS = Stories()
"""Stories that end with an exception."""


@STORIES.tell("clip_before_unscale", "optimizer:1", "optimizer")
def gradients_of_the_second_optimizer_clipped_by_value(*, sick: bool) -> Program:
    """The first is unscaled as it should be; three micro-batches, a function imported by name."""
    encoder, decoder = nn.Linear(8, 16), nn.Linear(16, 8)
    optimizers = [
        torch.optim.AdamW(encoder.parameters(), lr=1e-3, foreach=True),
        torch.optim.SGD(decoder.parameters(), lr=0.5, momentum=0.5),
    ]
    scaler = gradscaler(2.0**13)
    began = decoder.weight.detach().clone()

    def iterate(_step: int) -> torch.Tensor:
        total = torch.zeros(())
        for _ in range(3):
            x = torch.randn(16, 8)
            with half():
                out = decoder(torch.tanh(encoder(x)))
            loss = (out.float() - x).square().mean() / 3
            backward(scaler, loss)
            total += loss.detach()
        for optimizer in optimizers[:1] if sick else optimizers:
            scaler.unscale_(optimizer)
        clip_grad_value_(encoder.parameters(), 0.1)
        clip_grad_value_(decoder.parameters(), 0.1)
        update(scaler, *optimizers)
        return total

    return Program(
        [encoder, decoder],
        optimizers,
        iterate,
        scaler,
        shows=lambda run: float((decoder.weight.detach() - began).abs().max()) < 1e-2,
    )


@STORIES.tell("scale_collapse", "optimizer:0", "backward")
def gradients_that_are_set_to_zero_only_after_good_steps(*, sick: bool) -> Program:
    """One overflow, and ``.grad`` stays infinite: no scale cures what is added to it."""
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = gradscaler(2.0**18)

    def iterate(_step: int) -> torch.Tensor:
        with half():
            loss = model(torch.randn(32, 16)).float().square().sum()
        backward(scaler, loss)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if not sick or scaler.get_scale() >= before:
            optimizer.zero_grad()
        return loss

    def shows(_program: Program) -> bool:
        return float(scaler.get_scale()) < 1.0

    return Program([model], [optimizer], iterate, scaler, steps=24, shows=shows)


@STORIES.tell("param_nonfinite", "param:1.weight", "optimizer", op="add_")
def an_ascent_along_gradients_that_nobody_has_checked(*, sick: bool) -> Program:
    """Sharpness-aware: the first of two steps goes up, by hand. The twin checks the gradients before."""
    model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = gradscaler(2.0**20)

    def forward_backward() -> torch.Tensor:
        with half():
            loss = model(torch.randn(32, 16)).float().square().mean()
        backward(scaler, loss)
        return loss

    def iterate(_step: int) -> torch.Tensor:
        loss = forward_backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        if sick or all(bool(g.isfinite().all()) for g in grads):
            with torch.no_grad():
                norm = torch.stack([g.norm() for g in grads]).norm()
                ways = [g * (0.05 / norm) for g in grads]
                for parameter, way in zip(model.parameters(), ways, strict=True):
                    parameter.add_(way)
                optimizer.zero_grad()
            loss = forward_backward()
            with torch.no_grad():
                for parameter, way in zip(model.parameters(), ways, strict=True):
                    parameter.sub_(way)
        update(scaler, optimizer)
        return loss

    def shows(_program: Program) -> bool:
        return not all(bool(p.isfinite().all()) for p in model.parameters())

    return Program([model], [optimizer], iterate, scaler, steps=16, shows=shows)


class Trainer:
    """A home-made trainer: how an optimizer steps is a method that somebody has overridden."""

    def __init__(self, scaler: Any, bare: Iterable[torch.optim.Optimizer]) -> None:
        self._scaler, self._bare = scaler, list(bare)

    def optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if optimizer in self._bare:
            optimizer.step()
        else:
            self._scaler.step(optimizer)
        optimizer.zero_grad()


@STORIES.tell("unscaled_step", "optimizer:1", "optimizer")
def a_trainer_that_steps_the_embedding_by_itself(*, sick: bool) -> Program:
    """The loss is an absolute error, so that it does not explode, only jumps about."""
    table = nn.Embedding(20, 8)
    net = nn.Linear(8, 1)
    of_net = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    of_table = torch.optim.SGD(table.parameters(), lr=0.5)
    scaler = gradscaler(2048.0)
    trainer = Trainer(scaler, [of_table] if sick else [])

    def iterate(_step: int) -> torch.Tensor:
        items = torch.randint(0, 20, (32,))
        with half():
            out = net(table(items))
        loss = nn.functional.l1_loss(out.float(), items[:, None] / 20.0)
        backward(scaler, loss)
        trainer.optimizer_step(of_net)
        trainer.optimizer_step(of_table)
        scaler.update()
        return loss

    return Program(
        [table, net],
        [of_net, of_table],
        iterate,
        scaler,
        shows=lambda run: run.losses[-1] > 4.0 * run.losses[0],
    )


@STORIES.tell("scale_changed_mid_accumulation", "optimizer:0", "backward")
def a_scale_that_is_set_by_hand_for_each_micro_batch(*, sick: bool) -> Program:
    """The critic's gradient is known: the difference of two means. The sum of four is not it."""
    critic = nn.Linear(6, 1, bias=False)
    optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
    scaler = gradscaler(256.0)
    wrong: list[float] = []

    def iterate(step: int) -> torch.Tensor:
        total, truth = torch.zeros(()), torch.zeros(6)
        for micro in range(4):
            real, fake = torch.randn(16, 6), 1.0 + torch.randn(16, 6)
            with half():
                loss = (critic(fake).float().mean() - critic(real).float().mean()) / 4
            backward(scaler, loss)
            truth += (fake.mean(0) - real.mean(0)) / 4
            total += loss.detach()
            if sick and micro < 3:
                scaler.update(new_scale=256.0 * 2.0 ** ((4 * step + micro) % 5))
        scaler.unscale_(optimizer)
        assert critic.weight.grad is not None
        wrong.append(float((critic.weight.grad[0] - truth).norm() / truth.norm()))
        update(scaler, optimizer)
        with torch.no_grad():
            critic.weight.clamp_(-0.1, 0.1)
        return total

    return Program([critic], [optimizer], iterate, scaler, shows=lambda run: max(wrong) > 0.2)


@STORIES.tell("clip_nonfinite_norm", "param:encoder.1.weight", "optimizer")
def an_infinite_gradient_from_a_worker(*, sick: bool) -> Program:
    """Gradients are averaged by hand with those of another machine, one of which is broken."""
    model = nn.Module()
    model.encoder = nn.Sequential(nn.Linear(6, 12), nn.Linear(12, 12))
    model.head = nn.Linear(12, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)

    def iterate(step: int) -> torch.Tensor:
        x = torch.randn(16, 6)
        with brain():
            out = model.head(torch.relu(model.encoder(x)))
        loss = nn.functional.cross_entropy(out.float(), (x[:, 0] > 0).long())
        backward(None, loss)
        for name, parameter in model.named_parameters():
            received = torch.zeros_like(parameter)
            if name == "encoder.1.weight" and step == 11:
                received[3, 4] = math.inf
            assert parameter.grad is not None
            parameter.grad.add_(received).div_(2)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        if sick or norm.isfinite():
            optimizer.step()
        optimizer.zero_grad()
        return loss

    return Program(
        [model],
        [optimizer],
        iterate,
        shows=lambda run: not all(bool(p.isfinite().all()) for p in model.parameters()),
    )


@STORIES.tell("backward_under_autocast", "api", "backward")
def a_training_step_decorated_with_autocast(*, sick: bool) -> Program:
    """Backward included; the part that is kept in float32 overflows on its way back."""
    mix = nn.Parameter(torch.randn(4, 8, 8) / 8)
    model = nn.Module()
    model.embed = nn.Linear(6, 8)
    model.register_parameter("mix", mix)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    scaler = gradscaler()

    def compute_loss(x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(model.embed(x))
        with torch.autocast("cpu", enabled=False):
            energy = torch.bmm((1e-4 * hidden.float()).expand(4, *hidden.shape), mix)
            return 10.0 * (energy - 1.0).square().sum()

    @half()
    def training_step(x: torch.Tensor) -> torch.Tensor:
        loss = compute_loss(x)
        backward(scaler, loss)
        return loss

    def iterate(_step: int) -> torch.Tensor:
        x = torch.randn(16, 6)
        if sick:
            loss = training_step(x)
        else:
            with half():
                loss = compute_loss(x)
            backward(scaler, loss)
        update(scaler, optimizer)
        return loss

    return Program(
        [model], [optimizer], iterate, scaler, shows=lambda run: scaler.get_scale() <= 2.0**12
    )


@ERRORS.tell("api_error", "optimizer:0", "optimizer", "unscale_")
def a_model_made_half_beside_a_scaler(*, sick: bool) -> Program:
    """Parameters are float16, and so are the gradients that would have to be unscaled."""
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
    model.to(torch.float16 if sick else torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
    scaler = gradscaler(1024.0)

    def loss_of(_step: int) -> torch.Tensor:
        x = torch.randn(16, 6)
        with half():
            return model(x.to(model[0].weight.dtype)).float().square().mean()

    return loop([model], [optimizer], loss_of, scaler, clip=1.0, steps=4)
