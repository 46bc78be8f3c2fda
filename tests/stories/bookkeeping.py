"""Steps that some optimizers, schedulers or ranks make and others do not."""

from __future__ import annotations

import copy

import torch
from torch import nn

from tests.stories.stage import Program, Stories, backward, gradscaler, half, update

STORIES = Stories()


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


@STORIES.tell("shared_scaler_desync", "optimizer:0", "optimizer")
def a_critic_of_rewards_with_outliers_beside_an_actor(*, sick: bool) -> Program:
    """One scaler for both; the actor goes on learning from a critic that does not."""
    critic = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
    actor = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 3))
    optimizers = [
        torch.optim.Adam(critic.parameters(), lr=1e-4, foreach=True),
        torch.optim.AdamW(actor.parameters(), lr=1e-4, fused=True),
    ]
    scaler = gradscaler()
    skips = 0

    def iterate(_step: int) -> torch.Tensor:
        nonlocal skips
        x = torch.randn(32, 6)
        reward = 3e5 if torch.rand(()) < 0.2 and sick else 1.0
        with half():
            value, logits = critic(x), actor(x)
        of_actor = nn.functional.cross_entropy(logits.float(), torch.randint(0, 3, (32,)))
        of_critic = (value.float() - reward * torch.randn(32, 1)).square().mean()
        backward(scaler, of_actor)
        backward(scaler, of_critic)
        before = scaler.get_scale()
        update(scaler, *optimizers, clip=1.0)
        skips += scaler.get_scale() < before
        return of_actor + of_critic.log1p()

    return Program(
        [critic, actor], optimizers, iterate, scaler, steps=60, shows=lambda run: skips >= 8
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
