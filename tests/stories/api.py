"""Code around AMP that runs, and does not do what it should."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from tests.stories.stage import Program, Stories, brain, gradscaler, half

STORIES = Stories()


def mlp(width: int = 24) -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, width), nn.GELU(), nn.Linear(width, 4))


def loss_of(model: nn.Module) -> torch.Tensor:
    with half():
        out = model(torch.randn(16, 12))
    return (out.float() - 1.0).square().mean()


@STORIES.tell("clip_before_unscale", "optimizer:0", "optimizer")
def each_micro_batch_is_clipped_at_once(*, sick: bool) -> Program:
    """Imported by name, with a fused optimizer; the twin unscales after the last micro-batch."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = gradscaler(2.0**14)

    def iterate(_step: int) -> torch.Tensor:
        for _ in range(3):
            loss = loss_of(model) / 3
            scaler.scale(loss).backward()
            if sick:
                clip_grad_norm_(model.parameters(), max_norm=0.1)
        if not sick:
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), max_norm=0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss

    return Program([model], [optimizer], iterate, scaler)


@STORIES.tell("unscaled_step", "optimizer:0", "optimizer")
def the_scaler_only_scales(*, sick: bool) -> Program:
    """Clipping hides it: the step has the right size. The scaler is never updated."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = gradscaler(2.0**10)

    def iterate(_step: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        scaler.scale(loss).backward()
        if sick:
            clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        return loss

    return Program([model], [optimizer], iterate, scaler)


@STORIES.tell("mixed_scaled_backward", "optimizer:0", "backward")
def a_penalty_is_added_to_the_scaled_loss(*, sick: bool) -> Program:
    """One backward, of a sum; the twin adds before it scales."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = gradscaler(2.0**11)

    def iterate(_step: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss, penalty = loss_of(model), 0.01 * model[0].weight.square().sum()
        total = scaler.scale(loss) / 2 + penalty if sick else scaler.scale(loss / 2 + penalty)
        total.backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Program([model], [optimizer], iterate, scaler)


@STORIES.tell("mixed_scaled_backward", "optimizer:0", "backward")
def the_second_micro_batch_comes_after_unscale(*, sick: bool) -> Program:
    """Gradients divided already get a scaled loss on top; the twin unscales in the end."""
    first, second = mlp(), mlp()
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-6) for m in (first, second)]
    scaler = gradscaler(2.0**9)

    def iterate(_step: int) -> torch.Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        scaler.scale(loss_of(first) + loss_of(second)).backward()
        if sick:
            scaler.unscale_(optimizers[0])
        loss = loss_of(first)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        return loss

    return Program([first, second], optimizers, iterate, scaler)


@STORIES.tell("scale_changed_mid_accumulation", "optimizer:1", "backward")
def the_slow_optimizer_accumulates_over_updates(*, sick: bool) -> Program:
    """The scale grows while its gradients wait; the twin's has a scaler of its own."""
    fast, slow = mlp(), mlp()
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-3) for m in (fast, slow)]
    scaler, own = gradscaler(2.0**8, growth_interval=6), gradscaler(2.0**8, growth_interval=6)

    def iterate(step: int) -> torch.Tensor:
        optimizers[0].zero_grad()
        loss, aside = loss_of(fast), loss_of(slow) / 4
        scaler.scale(loss).backward()
        (scaler if sick else own).scale(aside).backward()
        scaler.step(optimizers[0])
        if step % 4 == 3:
            (scaler if sick else own).step(optimizers[1])
            if not sick:
                own.update()
        scaler.update()
        if step % 4 == 3:
            optimizers[1].zero_grad()
        return loss

    return Program([fast, slow], optimizers, iterate, scaler, steps=32)


@STORIES.tell("clip_nonfinite_norm", "param:0.table.weight", "optimizer")
def one_row_of_an_embedding_overflows(*, sick: bool) -> Program:
    """A single element, in one of two models; the twin has it raised, and drops the batch."""
    tokens, head = nn.ModuleDict({"table": nn.Embedding(40, 8)}), nn.Linear(8, 4)
    parameters = [*tokens.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01)

    def iterate(step: int) -> torch.Tensor:
        optimizer.zero_grad()
        with brain():
            out = head(tokens["table"](torch.randint(0, 40, (16,))))
        loss = out.float().square().mean()
        loss.backward()
        if step == 4:
            tokens["table"].weight.grad[3, 2] = float("inf")
        try:
            clip_grad_norm_(parameters, 1.0, error_if_nonfinite=not sick)
        except RuntimeError:
            return loss
        optimizer.step()
        return loss

    return Program([tokens, head], [optimizer], iterate, steps=10)


@STORIES.tell("backward_under_autocast", "api", "backward")
def a_region_around_the_whole_loop(*, sick: bool) -> Program:
    """bfloat16 as a decorator of the training step; the twin switches it off for backward."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def iterate(_step: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(torch.randn(16, 12)).float() - 1.0).square().mean()
        with torch.autocast("cpu", enabled=sick, dtype=torch.bfloat16):
            torch.autograd.backward([loss])
        optimizer.step()
        return loss

    return Program([model], [optimizer], iterate)
