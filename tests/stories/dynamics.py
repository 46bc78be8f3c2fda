"""Scales that begin anew, steps that only some take, trainings that diverge, casts that are old."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch._dynamo
import torch._functorch.config
from torch import nn

from tests.stories.stage import Program, Stories, backward, gradscaler, half, loop, update

STORIES = Stories()


def large(model: nn.Module, x: torch.Tensor, factor: float) -> torch.Tensor:
    """Return a loss whose gradients only fit float16 at a small scale."""
    with half():
        out = model(x)
    return factor * out.float().square().sum()


@STORIES.tell("scale_reset", "api", "config")
def a_checkpoint_without_the_scaler(*, sick: bool) -> Program:
    """Another Adam over the same weights gets its moments back, another scaler gets nothing."""
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    held: dict[str, Any] = {
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-5),
        "scaler": gradscaler(),
    }
    program = Program([model], [], lambda _step: torch.zeros(()), held["scaler"], steps=44)

    def iterate(step: int) -> torch.Tensor:
        if step == 30:
            saved = copy.deepcopy(
                (model.state_dict(), held["optimizer"].state_dict(), held["scaler"].state_dict())
            )
            held["optimizer"] = torch.optim.AdamW(model.parameters(), lr=1e-5)
            held["scaler"] = gradscaler()
            model.load_state_dict(saved[0])
            held["optimizer"].load_state_dict(saved[1])
            if not sick:
                held["scaler"].load_state_dict(saved[2])
        loss = large(model, torch.randn(16, 16), 300.0)
        backward(held["scaler"], loss)
        update(held["scaler"], held["optimizer"])
        program.trace.append((held["scaler"].get_scale(), 0.0))
        return loss

    program.iterate = iterate
    return program


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


@STORIES.tell("periodic_skip", "optimizer:0", "backward")
def a_penalty_with_a_backward_of_its_own(*, sick: bool) -> Program:
    """No growth in between: the scale is halved each time."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = gradscaler(1024.0, growth_interval=2000)

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(32, 16)
        with half():
            loss = (model(x).float() - 1.0).square().mean()
        if step % 9 == 8:
            with half():
                term = (1e9 if sick else 1e-2) * model(x).float().square().mean()
            backward(scaler, term)
        return loss

    return loop([model], [optimizer], loss_of, scaler, steps=90)


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


@STORIES.tell("rank_found_inf_mismatch", "optimizer:0", "optimizer")
def one_of_four_copies_that_skips(*, sick: bool) -> Program:
    """Nothing is watched of the one that skips."""
    first = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 2))
    models = [first, *(copy.deepcopy(first) for _ in range(3))]
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in models]
    scalers = [gradscaler(256.0) for _ in models]

    def iterate(step: int) -> torch.Tensor:
        batch, total = torch.randn(8, 6), torch.zeros(())
        for number, (model, optimizer, scaler) in enumerate(
            zip(models, optimizers, scalers, strict=True)
        ):
            with half():
                out = model(batch)
            loss = out.float().square().mean()
            bad = sick and step == 6 and number == 3
            backward(scaler, loss * 1e12 if bad else loss)
            update(scaler, optimizer)
            total += loss.detach()
        return total

    return Program(models, optimizers, iterate, scalers[0], steps=10, watched=first)


@STORIES.tell("divergence", "loss", "forward")
def a_rate_that_is_too_high_in_float32(*, sick: bool) -> Program:
    """No autocast, no scaler: the loss is only seen where backward is called."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2 if sick else 0.01)
    x, y = torch.randn(32, 8), torch.randn(32, 1)

    def loss_of(_step: int) -> torch.Tensor:
        return (model(3.0 * x) - y).square().mean()

    return loop([model], [optimizer], loss_of, steps=24)


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


class Protected(nn.Module):
    """A body under autocast, and a head that is kept out of it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.body(x))
        with torch.autocast("cpu", enabled=False):
            return self.head(hidden.float())


@STORIES.tell("compile_backward_autocast", "param:head.weight", "backward")
def a_head_without_a_bias(*, sick: bool) -> Program:
    """Nothing but a backward; some of its weights get a gradient that fits."""
    model = Protected()
    with torch.no_grad():
        model.body.weight.fill_(0.5)
        model.body.weight[4:].fill_(1e-3)
        model.body.bias.zero_()
    optimizer = torch.optim.SGD([torch.zeros((), requires_grad=True)], lr=0.0)

    def iterate(_step: int) -> torch.Tensor:
        torch._dynamo.reset()
        with torch._functorch.config.patch(
            backward_pass_autocast="same_as_forward" if sick else "off"
        ):
            compiled = torch.compile(model, backend="aot_eager")
            with half():
                out = compiled(torch.ones(2, 8))
            loss = 9000.0 * out.sum()
            loss.backward()
        return loss

    return Program([model], [optimizer], iterate, None, steps=2)
