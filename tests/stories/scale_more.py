"""Loss scales that fall, rise or jump for a reason, and steps that only some make."""

from __future__ import annotations

import copy
from itertools import chain
from typing import Any

import torch
from torch import nn

from tests.stories.stage import Program, Stories, backward, brain, gradscaler, half, loop, update

STORIES = Stories()


class Watchful:
    """Counts the steps that a loop has lost, as a user can: by the scale that falls.

    Attributes:
        skipped: The iterations whose step was skipped.
    """

    def __init__(self) -> None:
        self.skipped: list[int] = []

    def update(self, step: int, scaler: Any, *optimizers: torch.optim.Optimizer) -> None:
        """Step the optimizers through the scaler."""
        before = scaler.get_scale()
        update(scaler, *optimizers)
        if scaler.get_scale() < before:
            self.skipped.append(step)


@STORIES.tell("backward_nonfinite_any_scale", "param:0.weight", "optimizer", op="div_")
def gradients_divided_by_the_number_of_labels_which_is_zero(*, sick: bool) -> Program:
    """Summed losses of two micro-batches are averaged at the end; one day no label is left."""
    model = nn.Sequential(nn.Conv1d(4, 16, 3, padding=1), nn.GELU(), nn.Conv1d(16, 6, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = gradscaler(1024.0)

    def iterate(step: int) -> torch.Tensor:
        total, labels_seen = torch.zeros(()), 0
        for _ in range(2):
            x = torch.randn(4, 4, 12)
            labels = torch.randint(0, 6, (4, 12))
            if step >= 26:
                labels.fill_(-100)
            with half():
                out = model(x)
            loss = nn.functional.cross_entropy(out.float(), labels, reduction="sum")
            backward(scaler, loss)
            total += loss.detach()
            labels_seen += int((labels != -100).sum())
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad /= labels_seen if sick else max(labels_seen, 1)
        update(scaler, optimizer)
        return total

    return Program(
        [model], [optimizer], iterate, scaler, steps=60, shows=lambda run: scaler.get_scale() < 1.0
    )


@STORIES.tell("scale_below_one", "param:stencil.weight", "backward")
def a_residual_of_physics_that_is_weighted_up(*, sick: bool) -> Program:
    """RMSprop does not mind how large gradients are; float16 does."""
    model = nn.ModuleDict({"stencil": nn.Conv2d(1, 4, 3, bias=False)})
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    scaler = gradscaler()
    lost = Watchful()
    weight = 1e9 if sick else 1.0

    def iterate(step: int) -> torch.Tensor:
        field = torch.randn(8, 1, 16, 16)
        with half():
            residual = model["stencil"](field)
        loss = weight * (residual.float() - 1.0).square().mean()
        backward(scaler, loss)
        lost.update(step, scaler, optimizer)
        return loss

    def shows(run: Program) -> bool:
        return scaler.get_scale() < 1.0 and 39 not in lost.skipped

    return Program([model], [optimizer], iterate, scaler, steps=40, shows=shows)


@STORIES.tell("scale_runaway", "api", "backward")
def triplets_that_are_too_easy(*, sick: bool) -> Program:
    """The negatives are so far away that the margin is kept everywhere: no gradient at all."""
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 32), nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, foreach=True)
    scaler = gradscaler(growth_interval=5)

    def iterate(_step: int) -> torch.Tensor:
        total = torch.zeros(())
        for _ in range(2):
            x = torch.randn(16, 12)
            with half():
                anchors = model(x)
                positives = model(x + 0.01 * torch.randn_like(x))
                others = model(torch.randn_like(x))
            negatives = others.float() + (50.0 if sick else 0.0)
            loss = nn.functional.triplet_margin_loss(anchors.float(), positives.float(), negatives)
            backward(scaler, loss / 2)
            total += loss.detach()
        update(scaler, optimizer)
        return total

    return Program(
        [model],
        [optimizer],
        iterate,
        scaler,
        steps=100,
        shows=lambda run: scaler.get_scale() >= 2.0**32,
    )


@STORIES.tell("scale_reset", "api", "config")
def a_scaler_of_its_own_for_each_epoch(*, sick: bool) -> Program:
    """It is made inside the loop over epochs, and begins at 65536 each time."""
    model = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, foreach=False)
    first = gradscaler()
    scalers = [first]
    lost = Watchful()

    def iterate(step: int) -> torch.Tensor:
        if sick and step in {30, 60}:
            scalers.append(gradscaler())
        x = torch.randn(64, 10)
        with half():
            out = model(x)
        loss = (out.float() - 40.0).square().sum()
        backward(scalers[-1], loss)
        lost.update(step, scalers[-1], optimizer)
        return loss

    def shows(run: Program) -> bool:
        return all(set(range(start, start + 5)) <= set(lost.skipped) for start in (30, 60))

    return Program([model], [optimizer], iterate, first, steps=90, shows=shows)


@STORIES.tell("periodic_skip", "optimizer:0", "backward")
def a_penalty_of_its_own_backward_every_tenth_step(*, sick: bool) -> Program:
    """The scale has grown back when it comes round again; two groups of parameters, clipped."""
    critic = nn.Sequential(nn.Linear(6, 24), nn.Softplus(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(
        [
            {"params": critic[0].parameters(), "lr": 1e-5},
            {"params": critic[2].parameters(), "lr": 1e-6},
        ],
        fused=True,
    )
    scaler = gradscaler(2.0**14, growth_interval=7 if sick else 1000)
    skipped: list[int] = []

    def iterate(step: int) -> torch.Tensor:
        real, fake = torch.randn(32, 6), 1.0 + torch.randn(32, 6)
        with half():
            loss = critic(fake).float().mean() - critic(real).float().mean()
        backward(scaler, loss)
        if step % 10 == 9:
            with half():
                scores = critic(torch.randn(32, 6))
            backward(scaler, 1e2 * (scores.float() + 2.0).square().mean())
        before = scaler.get_scale()
        update(scaler, optimizer, clip=1.0)
        if scaler.get_scale() < before:
            skipped.append(step)
        return loss

    def shows(run: Program) -> bool:
        return skipped == list(range(9, 120, 10))

    return Program([critic], [optimizer], iterate, scaler, steps=120, shows=shows)


@STORIES.tell("scaler_with_bf16", "api", "config")
def a_switch_of_dtype_that_the_scaler_does_not_follow(*, sick: bool) -> Program:
    """The flag of the script changes the region only; micro-batches, two models."""
    stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU())
    head = nn.Linear(8, 5)
    optimizer = torch.optim.SGD(
        chain(stem.parameters(), head.parameters()), lr=1e-2, momentum=0.9, nesterov=True
    )
    dtype = torch.bfloat16
    scaler = gradscaler(growth_interval=6, enabled=sick or dtype is torch.float16)

    def loss_of(_step: int) -> torch.Tensor:
        with brain():
            out = head(stem(torch.randn(4, 3, 8, 8)).mean((2, 3)))
        return nn.functional.cross_entropy(out.float(), torch.randint(0, 5, (4,))) / 2

    return loop(
        [stem, head],
        [optimizer],
        loss_of,
        scaler,
        micro_batches=2,
        steps=30,
        shows=lambda run: scaler.get_scale() > 65536.0,
    )


@STORIES.tell("scheduler_ahead", "optimizer:1", "optimizer")
def a_warm_up_that_is_over_before_the_first_step(*, sick: bool) -> Program:
    """Only the head has a schedule; it is stepped in every iteration, taken or not."""
    body, head = nn.Linear(8, 16), nn.Linear(16, 2)
    of_body = torch.optim.Adam(body.parameters(), lr=1e-4)
    of_head = torch.optim.SGD(head.parameters(), lr=0.1)
    warm_up = torch.optim.lr_scheduler.LambdaLR(of_head, lambda step: min(1.0, (step + 1) / 10))
    scaler = gradscaler(2.0**27)
    rates: list[float] = []

    def iterate(_step: int) -> torch.Tensor:
        x = torch.randn(32, 8)
        with half():
            out = head(torch.tanh(body(x)))
        loss = (out.float() - x[:, :2]).square().mean()
        before, rate = scaler.get_scale(), of_head.param_groups[0]["lr"]
        backward(scaler, loss)
        update(scaler, of_body, of_head)
        is_taken = scaler.get_scale() >= before
        if is_taken:
            rates.append(rate)
        if sick or is_taken:
            warm_up.step()
        return loss

    return Program(
        [body, head],
        [of_body, of_head],
        iterate,
        scaler,
        steps=30,
        shows=lambda run: rates[0] > 0.05,
    )


@STORIES.tell("rank_found_inf_mismatch", "optimizer:0", "optimizer")
def gradients_averaged_after_the_verdict(*, sick: bool) -> Program:
    """Of three replicas the one with the bad batch skips; the others have its infinities."""
    ranks = [nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))]
    ranks += [copy.deepcopy(ranks[0]) for _ in range(2)]
    optimizers = [torch.optim.AdamW(rank.parameters(), lr=1e-3) for rank in ranks]
    scalers = [gradscaler(256.0) for _ in ranks]

    def iterate(step: int) -> torch.Tensor:
        losses = []
        for rank, optimizer, scaler in zip(ranks, optimizers, scalers, strict=True):
            with half():
                out = rank(torch.randn(16, 6))
            weight = 1e8 if rank is ranks[2] and step == 9 else 1.0
            losses.append(weight * (out.float() - 1.0).square().mean())
            backward(scaler, losses[-1])
            if sick:
                scaler.unscale_(optimizer)
        for group in zip(*(rank.parameters() for rank in ranks), strict=True):
            mean = torch.stack([p.grad for p in group if p.grad is not None]).mean(0)
            for p in group:
                assert p.grad is not None
                p.grad.copy_(mean)
        for optimizer, scaler in zip(optimizers, scalers, strict=True):
            update(scaler, optimizer)
        return losses[0]

    return Program(
        [ranks[0]],
        optimizers[:1],
        iterate,
        scalers[0],
        steps=16,
        shows=lambda run: not all(bool(p.isfinite().all()) for p in ranks[0].parameters()),
    )
