"""Loops around a scaler that are written wrongly, and learn badly for it."""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_value_

from tests.stories.stage import Program, Stories, backward, brain, gradscaler, half, loop, update

if TYPE_CHECKING:
    from collections.abc import Iterable

STORIES = Stories()
ERRORS = Stories()
"""Stories that end with an exception."""


def parameters_of(*models: nn.Module) -> Iterable[nn.Parameter]:
    return chain(*(model.parameters() for model in models))


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


@STORIES.tell("mixed_scaled_backward", "optimizer:1", "backward")
def a_teacher_that_only_the_unscaled_loss_listens_to(*, sick: bool) -> Program:
    """The pull of the head towards its teacher goes back on its own, one optimizer each."""
    body, head, teacher = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 4)
    teacher.requires_grad_(requires_grad=False)
    optimizers = [
        torch.optim.AdamW(body.parameters(), lr=1e-3, foreach=False),
        torch.optim.SGD(head.parameters(), lr=0.05, momentum=0.9),
    ]
    scaler = gradscaler(2.0**14)

    def iterate(_step: int) -> torch.Tensor:
        x = torch.randn(32, 8)
        with half():
            hidden = torch.relu(body(x))
            logits, taught = head(hidden), teacher(hidden)
        loss = 0.01 * nn.functional.cross_entropy(logits.float(), x[:, :4].argmax(1))
        pull = (head.weight - teacher.weight).square().sum()
        torch.autograd.backward([scaler.scale(loss + 0.0 * taught.float().mean())])
        torch.autograd.backward([pull if sick else scaler.scale(pull)])
        update(scaler, *optimizers, clip=10.0)
        return loss + pull

    return Program(
        [body, head],
        optimizers,
        iterate,
        scaler,
        steps=40,
        shows=lambda run: float((head.weight - teacher.weight).detach().abs().mean()) > 0.05,
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


class Attention(nn.Module):
    """Attention between two sequences; the mask is an additive constant of the nineties."""

    def __init__(self, fill: float) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)
        self._fill = fill

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.q(x) @ self.k(x).mT
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return scores.masked_fill(future, self._fill).softmax(-1) @ x.to(scores.dtype)


@ERRORS.tell("api_error", "layers.1.attention", "forward", "masked_fill")
def a_mask_of_minus_a_billion(*, sick: bool) -> Program:
    """It has always worked in float32. The first layer has learnt to use infinity."""
    model = nn.Module()
    model.layers = nn.ModuleList(
        nn.ModuleDict({"attention": Attention(fill), "mlp": nn.Linear(8, 8)})
        for fill in (-math.inf, -1e9 if sick else -math.inf)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = gradscaler(1024.0)

    def loss_of(_step: int) -> torch.Tensor:
        x = torch.randn(4, 5, 8)
        with half():
            for layer in model.layers:
                x = layer["mlp"](layer["attention"](x))
        return x.float().square().mean()

    return loop([model], [optimizer], loss_of, scaler, steps=4)


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


@ERRORS.tell("api_error", "optimizer:1", "optimizer", "step")
def an_optimizer_that_is_stepped_in_the_inner_loop(*, sick: bool) -> Program:
    """Twice before the one update at the end of the iteration."""
    critic, maker = nn.Linear(6, 1), nn.Linear(3, 6)
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
    of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3)
    scaler = gradscaler(1024.0)

    def iterate(_step: int) -> torch.Tensor:
        with half():
            fake = maker(torch.randn(16, 3))
            loss = critic(fake).float().mean()
        backward(scaler, loss)
        scaler.step(of_maker)
        for micro in range(2):
            with half():
                loss = (critic(fake.detach()).float() - 1.0).square().mean()
            of_critic.zero_grad()
            backward(scaler, loss)
            scaler.step(of_critic)
            if not sick or micro:
                scaler.update()
        of_maker.zero_grad()
        return loss

    return Program([critic, maker], [of_maker, of_critic], iterate, scaler, steps=4)


@ERRORS.tell("api_error", "api", "optimizer", "update")
def an_update_in_an_iteration_that_has_left_the_step_out(*, sick: bool) -> Program:
    """The loop looks at the loss by itself, and then asks the scaler about nothing."""
    model = nn.Linear(6, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    scaler = gradscaler(1024.0)

    def iterate(step: int) -> torch.Tensor:
        x = torch.randn(16, 6)
        with half():
            loss = model(x).float().square().mean()
        is_good = step != 3
        if is_good:
            backward(scaler, loss)
            scaler.step(optimizer)
        if is_good or sick:
            scaler.update()
        optimizer.zero_grad()
        return loss

    return Program([model], [optimizer], iterate, scaler, steps=6)
