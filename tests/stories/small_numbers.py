"""Numbers that become zero, collide or are added in vain, in a dtype of few bits."""

from __future__ import annotations

import torch
from torch import nn

from tests.stories.stage import Program, Stories, backward, gradscaler, half, update

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
