"""Numbers that become zero, collide or are added in vain, in a dtype of few bits."""

from __future__ import annotations

import math

import torch
from torch import nn

from tests.stories.stage import Program, Stories, backward, brain, gradscaler, half, update

STORIES = Stories()


class _InstanceNorm(nn.Module):
    """An instance norm as papers write it."""

    def __init__(self, *, wide: bool) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        eps = 1e-4 if self.wide else 1e-8
        h = x.float() if self.wide else x
        centred = h - h.mean((2, 3), keepdim=True)
        variance = (centred * centred).mean((2, 3), keepdim=True)
        return (centred * torch.rsqrt(variance + eps)).to(x.dtype)


@STORIES.tell("forward_nan_underflow", "body.1", "forward", "rsqrt")
def blank_images_in_a_convnet_with_an_eps_that_is_zero(*, sick: bool) -> Program:
    """An autoencoder; one image in the batch is a blank page, as in scanned documents."""
    model = nn.Module()
    model.body = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1, bias=False), _InstanceNorm(wide=not sick), nn.GELU()
    )
    model.out = nn.Conv2d(6, 1, 3, padding=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    scaler = gradscaler(2.0**8)

    def iterate(_step: int) -> torch.Tensor:
        pages = torch.randn(4, 1, 8, 8)
        pages[2] = 0.0
        total = torch.zeros(())
        for part in pages.split(2):
            with half():
                out = model.out(model.body(part))
            loss = (out.float() - part).square().mean() / 2
            backward(scaler, loss)
            total += loss.detach()
        update(scaler, optimizer, clip=1.0)
        return total

    return Program([model], [optimizer], iterate, scaler, shows=lambda run: run.has_no_finite_loss)


class _Alibi(nn.Module):
    """Causal attention that forgets with distance."""

    def __init__(self, *, wide: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.wide = wide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        place = torch.arange(x.shape[1])
        distance = (place[:, None] - place[None, :]).abs()
        bias = (distance.float() if self.wide else distance.to(q.dtype)) * -0.01
        return torch.softmax(q @ k.transpose(1, 2) / math.sqrt(8) + bias.to(q.dtype), dim=-1) @ v


@STORIES.tell("lossy_integer_cast", "layers.0", "forward", "_to_copy")
def distances_between_tokens_in_bfloat16(*, sick: bool) -> Program:
    """400 tokens; beyond a distance of 256 two neighbours are the same."""
    model = nn.Module()
    model.layers = nn.ModuleList([_Alibi(wide=not sick)])
    model.head = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    distances: list[int] = []

    def iterate(_step: int) -> torch.Tensor:
        x, labels = torch.randn(1, 400, 8), torch.randint(0, 2, (1,))
        with brain():
            h = model.layers[0](x)
            loss = nn.functional.cross_entropy(model.head(h.mean(1)), labels)
        backward(None, loss)
        update(None, optimizer)
        distances.append(
            int(torch.arange(400).to(torch.bfloat16 if sick else torch.float32).unique().numel())
        )
        return loss

    return Program([model], [optimizer], iterate, shows=lambda run: max(distances) < 400)
