"""Mixed precision that gains nothing, or less than it could."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from tests.stories.stage import (
    PAID,
    Controls,
    Program,
    Stories,
    brain,
    full,
    gradscaler,
    half,
    loop,
)

STORIES = Stories()
CONTROLS = Controls()

WIDE = 64


def train(
    model: nn.Module,
    forward: Callable[[], torch.Tensor],
    *,
    context: Callable[[], Any] = brain,
    scaler: Any = None,
    steps: int = 6,
    micro_batches: int = 1,
) -> Program:
    """Return the documented loop around ``forward``, which returns the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def loss_of(_step: int) -> torch.Tensor:
        with context():
            return forward()

    return loop(
        [model],
        [optimizer],
        loss_of,
        scaler,
        micro_batches=micro_batches,
        steps=steps,
        settings=PAID,
    )


def mean_square(out: torch.Tensor) -> torch.Tensor:
    """Return a loss in float32."""
    return out.float().square().mean()


class Pair(nn.Module):
    """Two parts, the second one in a region of its own."""

    def __init__(self, front: nn.Module, back: nn.Module, region: Callable[[], Any]) -> None:
        super().__init__()
        self.front, self.back, self._region = front, back, region

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.front(x)
        with self._region() as region:
            return self.back(x.float() if region is not None else x)


def mlp(*widths: int) -> nn.Sequential:
    """Return Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@STORIES.tell("fp32_matmul", "head", "forward")
def a_head_that_was_left_outside(*, sick: bool) -> Program:
    """The region ends before the part with nearly all of the work."""
    model = nn.ModuleDict({"body": nn.Linear(16, 16), "head": nn.Linear(16, 4096)})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def loss_of(_step: int) -> torch.Tensor:
        with brain():
            hidden = model["body"](torch.randn(32, 16))
            out = hidden if sick else model["head"](hidden)
        return mean_square(model["head"](out.float()) if sick else out)

    return loop([model], [optimizer], loss_of, steps=6, settings=PAID)


@STORIES.tell("autocast_inactive", "", "forward")
def a_region_for_a_device_that_is_not_there(*, sick: bool) -> Program:
    """The script was written for a GPU; here it computes in float32."""
    model = nn.Linear(32, 32)
    device = "cuda" if sick else "cpu"
    return train(
        model,
        lambda: mean_square(model(torch.randn(16, 32))),
        context=lambda: torch.autocast(device, dtype=torch.bfloat16),
    )


class Tower(nn.Module):
    """Layers, between which ``between`` does what it likes."""

    def __init__(self, depth: int, between: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDE, WIDE) for _ in range(depth))
        self._between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self._between(layer(x))
        return x


@STORIES.tell("cast_overhead", "tower", "forward")
def each_layer_goes_back_to_float32(*, sick: bool) -> Program:
    """To be on the safe side."""
    model = nn.Module()
    model.tower = Tower(6, lambda x: torch.relu(x.float() if sick else x))
    return train(model, lambda: mean_square(model.tower(torch.randn(256, WIDE))))


@STORIES.tell("dims_unaligned", "head", "config")
def a_vocabulary_nobody_padded(*, sick: bool) -> Program:
    """The model has no memory and never runs."""
    with torch.device("meta"):
        model = nn.Module()
        model.body = nn.Linear(512, 512)
        model.head = nn.Linear(512, 32003 if sick else 32064)
    return Program([model], [], lambda _: torch.zeros(()), steps=1)


@STORIES.tell("dims_unaligned", "wide", "config")
def hidden_sizes_that_are_odd(*, sick: bool) -> Program:
    """Seen in what is multiplied."""
    width = 333 if sick else 336
    model = nn.ModuleDict({"wide": nn.Linear(64, width), "out": nn.Linear(width, 8)})

    def forward() -> torch.Tensor:
        return mean_square(model["out"](torch.relu(model["wide"](torch.randn(32, 64)))))

    return train(model, forward)


@STORIES.tell("layout_nchw", "2", "config")
def pictures_with_their_channels_first(*, sick: bool) -> Program:
    """Pictures as they come."""
    model = nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3))
    layout = torch.contiguous_format if sick else torch.channels_last
    model.to(memory_format=layout)
    return train(
        model,
        lambda: mean_square(model(torch.randn(2, 8, 12, 12).to(memory_format=layout))),
    )


@STORIES.tell("no_memory_gain", "", "config")
def a_training_of_few_positions(*, sick: bool) -> Program:
    """Weights outweigh activations with float16, a scaler and steps as well."""
    model = mlp(256, 512, 256)
    batch = 4 if sick else 2048
    return train(
        model,
        lambda: mean_square(model(torch.randn(batch, 256))),
        context=half,
        scaler=gradscaler(2.0**10),
        steps=3,
    )


@CONTROLS.add
def a_plain_stack_and_a_large_batch() -> Program:
    """Two casts a layer, and that is as it should be."""
    model = mlp(64, 64, 64, 64)
    return train(model, lambda: mean_square(model(torch.randn(1024, 64))))


@CONTROLS.add
def a_transformer_under_float16() -> Program:
    """Attention, norms, residuals, micro-batches, a scaler."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return train(
        model,
        lambda: mean_square(model(torch.randn(16, 24, 32))),
        context=half,
        scaler=gradscaler(2.0**10),
        micro_batches=2,
    )


class RMSNorm(nn.Module):
    """The norm of many language models: its statistics in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)


class Block(nn.Module):
    """A layer of such a model."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(RMSNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norms[0](x)).chunk(3, -1)
        weights = torch.softmax(q @ k.transpose(-1, -2) / 8.0, -1, dtype=torch.float32)
        x = x + self.out(weights.to(v.dtype) @ v)
        return x + self.down(nn.functional.silu(self.up(self.norms[1](x))))


@CONTROLS.add
def a_language_model_in_bfloat16() -> Program:
    """Norms and softmax in float32, as everybody writes them."""
    model = nn.Sequential(Block(32), Block(32), Block(32)).bfloat16()
    return train(
        model, lambda: mean_square(model(torch.randn(8, 24, 32).bfloat16())), context=nullcontext
    )


@CONTROLS.add
def a_small_part_that_has_to_be_float32() -> Program:
    """A router of a hundredth of the FLOPs, and a loss that multiplies matrices."""
    model = Pair(mlp(64, 256, 64), nn.Linear(64, 8), full)

    def forward() -> torch.Tensor:
        out = model(torch.randn(512, 64))
        with full():
            return mean_square(out @ out.mT[:, :8])

    return train(model, forward)


@CONTROLS.add
def float32_with_a_scaler_that_is_off() -> Program:
    """A script in which mixed precision is an option, and was not chosen."""
    model = mlp(32, 64, 8)
    return train(
        model,
        lambda: mean_square(model(torch.randn(64, 32))),
        context=full,
        scaler=gradscaler(enabled=False),
    )


@CONTROLS.add
def an_evaluation_in_float32_between_steps() -> Program:
    """More FLOPs than the training step, and none of it is training."""
    model = mlp(64, 64, 64)

    def forward() -> torch.Tensor:
        with torch.no_grad(), full():
            model(torch.randn(512, 64))
        return mean_square(model(torch.randn(128, 64)))

    return train(model, forward)
