"""Gradients that do not fit into float16, and updates that round away."""

from __future__ import annotations

import torch
from torch import nn

from tests.stories.stage import Program, Stories, gradscaler, half, loop

STORIES = Stories()


@STORIES.tell("grad_underflow", "param:1.experts.wide.weight", "backward")
def an_expert_in_a_list_of_models_whose_gate_is_almost_shut(*, sick: bool) -> Program:
    """Only one branch is flushed to zero; the other, and the stem, have ordinary gradients."""
    stem = nn.Linear(16, 32)
    net = nn.Module()
    net.experts = nn.ModuleDict({"wide": nn.Linear(32, 64), "narrow": nn.Linear(32, 64)})
    optimizers = [
        torch.optim.Adam(stem.parameters(), lr=1e-3, foreach=False),
        torch.optim.Adam(net.parameters(), lr=1e-3, foreach=False),
    ]
    scaler = gradscaler(64.0 if sick else 65536.0, growth_interval=3000)

    def loss_of(_step: int) -> torch.Tensor:
        x = torch.randn(32, 16)
        with half():
            hidden = stem(x)
            wide, narrow = net.experts["wide"](hidden), net.experts["narrow"](hidden)
        return narrow.float().square().mean() + 4e-7 * wide.float().square().mean()

    return loop([stem, net], optimizers, loss_of, scaler)


@STORIES.tell("fp16_without_scaler", "param:0.weight", "backward")
def float16_with_the_scaler_switched_off(*, sick: bool) -> Program:
    """``enabled=False`` was left over from a test; two optimizers, micro-batches, clipping."""
    model = nn.Sequential(nn.Linear(64, 96), nn.SiLU(), nn.Linear(96, 96), nn.Linear(96, 2))
    optimizers = [
        torch.optim.AdamW(model[0].parameters(), lr=1e-4, foreach=True),
        torch.optim.AdamW(model[2:].parameters(), lr=1e-4, foreach=True),
    ]
    scaler = gradscaler(enabled=not sick)

    def loss_of(_step: int) -> torch.Tensor:
        x = torch.randn(128, 64)
        with half():
            out = model(x)
        return 3e-6 * (out.float() - 1.0).square().mean() / 2

    return loop([model], optimizers, loss_of, scaler, clip=0.5, micro_batches=2, steps=20)


@STORIES.tell("fp16_without_scaler", "param:2.weight", "backward")
def float16_without_a_scaler_once_the_loss_has_fallen(*, sick: bool) -> Program:
    """The gradients fit at first; as the model learns they sink below the format."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 64, bias=False))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    scaler = None if sick else gradscaler()

    def loss_of(step: int) -> torch.Tensor:
        x = torch.randn(32, 8)
        with half():
            out = model(x)
        return 4.0**-step * out.float().square().mean()

    return loop([model], [optimizer], loss_of, scaler, steps=14 if sick else 10)


@STORIES.tell("range_too_wide", "param:optimizer0.0", "backward")
def two_losses_of_far_apart_size_without_a_model(*, sick: bool) -> Program:
    """Nothing but a scaler is handed over; parameters are called by their place."""
    first, second = nn.Linear(10, 10), nn.Linear(10, 40)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=1e-9, momentum=0.5)
    scaler = gradscaler(2.0**15)
    large, small = (2e2, 1e-8) if sick else (1e-2, 1e-2)

    def loss_of(_step: int) -> torch.Tensor:
        x = torch.randn(16, 10)
        with half():
            a, b = first(x), second(x)
        return large * (a.float() + 5.0).square().sum() + small * b.float().square().mean()

    return loop([first, second], [optimizer], loss_of, scaler, steps=40, watched=None)


@STORIES.tell("range_too_wide", "param:0.pixels.weight", "backward")
def a_sum_over_pixels_that_brings_the_scale_below_one(*, sick: bool) -> Program:
    """The scale is a symptom, and so is what is lost at it."""
    model = nn.Sequential(nn.ModuleDict({"pixels": nn.Linear(16, 32), "style": nn.Linear(16, 64)}))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    scaler = gradscaler()
    of_pixels, of_style = (1e4, 1e-6) if sick else (1e-3, 1e-3)

    def loss_of(_step: int) -> torch.Tensor:
        x = torch.randn(64, 16)
        with half():
            pixels, style = model[0]["pixels"](x), model[0]["style"](x)
        loss = of_pixels * (pixels.float() - 20.0).square().sum()
        return loss + of_style * style.float().square().mean()

    return loop([model], [optimizer], loss_of, scaler, clip=1.0, steps=50)


@STORIES.tell("update_rounding", "param:2.weight", "optimizer")
def bfloat16_weights_with_the_rate_of_a_fine_tuning(*, sick: bool) -> Program:
    """AdamW moves by 1e-6 what is spaced by 1e-3; the twin has float32 weights."""
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 64), nn.Linear(64, 8))
    model.to(torch.bfloat16 if sick else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0, fused=True)

    def loss_of(_step: int) -> torch.Tensor:
        x = torch.randn(32, 16, dtype=model[0].weight.dtype)
        return (model(x).float() - 0.3).square().mean()

    return loop([model], [optimizer], loss_of, steps=32)


@STORIES.tell("optimizer_eps_underflow", "param:0.weight", "optimizer")
def rmsprop_of_float16_weights(*, sick: bool) -> Program:
    """A dead unit is enough: its gradient of zero is divided by zero. The twin has float32 weights and state."""
    model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 8))
    model.to(torch.float16 if sick else torch.float32)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    scaler = None if sick else gradscaler()

    def loss_of(_step: int) -> torch.Tensor:
        x = torch.randn(32, 16, dtype=model[0].weight.dtype)
        with half():
            out = model(x)
        return (out.float() - 0.1).square().mean()

    return loop([model], [optimizer], loss_of, scaler, steps=12)
