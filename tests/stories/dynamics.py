"""Scales that begin anew, stay low or do not fit a loss, steps that only some optimizers take, casts that are old."""

from __future__ import annotations

import torch
from torch import nn

from tests.stories.stage import PAID, Program, Stories, backward, gradscaler, half, loop, update

STORIES = Stories()


def large(model: nn.Module, x: torch.Tensor, factor: float) -> torch.Tensor:
    """Return a loss whose gradients only fit float16 at a small scale."""
    with half():
        out = model(x)
    return factor * out.float().square().sum()


@STORIES.tell("scale_reset", "api", "config")
def a_fresh_state_loaded_into_the_scaler(*, sick: bool) -> Program:
    """A resume that hands the scaler what a new scaler says of itself; two optimizers, clipping."""
    front, back = nn.Linear(12, 24), nn.Linear(24, 3)
    optimizers = [
        torch.optim.SGD(front.parameters(), lr=1e-7, momentum=0.9),
        torch.optim.Adam(back.parameters(), lr=1e-5, fused=True),
    ]
    scaler = gradscaler()

    def loss_of(step: int) -> torch.Tensor:
        if step == 28:
            scaler.load_state_dict((gradscaler() if sick else scaler).state_dict())
        return large(nn.Sequential(front, back), torch.randn(8, 12), 1000.0)

    return loop([front, back], optimizers, loss_of, scaler, clip=1.0, steps=40)


@STORIES.tell("shared_scaler_desync", "optimizer:1", "optimizer")
def two_updates_of_one_scaler(*, sick: bool) -> Program:
    """Each player has an update of its own, of the same scaler."""
    maker, judge = nn.Linear(8, 16), nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-5) for m in (judge, maker)]
    scaler = gradscaler(4096.0)
    loud = nn.functional.softplus

    def iterate(step: int) -> torch.Tensor:
        noise = torch.randn(16, 8)
        with half():
            fake = maker(noise)
            real = judge(torch.randn(16, 16)).float()
            loss = loud(-real).mean() + loud(judge(fake.detach()).float()).mean()
        backward(scaler, loss)
        update(scaler, optimizers[0])
        judge.requires_grad_(requires_grad=False)
        with half():
            made = loud(-judge(maker(noise)).float()).mean()
        if sick and step % 3:
            made = made * 1e8
        backward(scaler, made)
        judge.requires_grad_(requires_grad=True)
        update(scaler, optimizers[1])
        return loss

    return Program([judge, maker], optimizers, iterate, scaler, steps=24)


@STORIES.tell("stale_autocast_cache", "param:0.weight", "forward")
def an_epoch_of_a_deeper_model_in_one_region(*, sick: bool) -> Program:
    """Without a scaler, a fused optimizer; the twin does not let autocast keep casts."""
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    x, y = torch.randn(16, 8), torch.randn(16, 1)

    def several(_step: int) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.float16, cache_enabled=sick):
            for _ in range(4):
                loss = (model(x).float() - y).square().mean()
                backward(None, loss)
                update(None, optimizer)
        return loss

    return Program([model], [optimizer], several, steps=3)


@STORIES.tell("scale_stuck_low", "param:0.weight", "backward")
def ten_broken_batches_and_the_default_growth_interval(*, sick: bool) -> Program:
    """From 65536 to 64 in ten steps, and 20000 steps to go back. The twin drops such batches."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = gradscaler()

    def iterate(step: int) -> torch.Tensor:
        x = torch.randn(32, 32)
        if 22 <= step < 32:
            if not sick:
                return torch.zeros(())
            x = 1e6 * x
        with half():
            out = model(x)
        loss = 5e-7 * out.float().square().mean()
        backward(scaler, loss)
        update(scaler, optimizer)
        return loss

    return Program([model], [optimizer], iterate, scaler, steps=70, settings=PAID)


@STORIES.tell("fp16_loss_caps_scale", "loss", "backward")
def a_loss_of_ones_own_computed_under_autocast(*, sick: bool) -> Program:
    """A Charbonnier loss: its result is float16, and so is the scale that it is multiplied by."""
    model = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    scaler = gradscaler()

    def loss_of(_step: int) -> torch.Tensor:
        x = torch.randn(16, 16)
        with half():
            out = model(x)
            error = (out if sick else out.float()) - 0.5
            return (error * error + 1e-3).sqrt().mean()

    return loop([model], [optimizer], loss_of, scaler, clip=1.0)
