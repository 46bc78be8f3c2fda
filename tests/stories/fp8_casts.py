"""Layers that multiply in float8: scales that are too large, too small, or not finite."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tests.stories.stage import Program, Stories, loop

STORIES = Stories()

E4M3 = torch.float8_e4m3fn
E5M2 = torch.float8_e5m2


class Quantized(nn.Module):
    """A linear layer whose input goes through float8, as ``scale_of`` and ``cast`` say."""

    def __init__(
        self,
        sizes: tuple[int, int],
        scale_of: Callable[[torch.Tensor], torch.Tensor],
        cast: Callable[[torch.Tensor], torch.Tensor] = lambda x: x.to(E4M3),
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(*sizes)
        self.scale_of, self.cast = scale_of, cast

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.scale_of(x.detach())
        rounded = self.cast(x.detach() * scale).to(x.dtype) / scale
        return self.linear(x + (rounded - x.detach()))


def current(x: torch.Tensor) -> torch.Tensor:
    """Return the scale that brings the largest magnitude to the end of the format."""
    return 448.0 / x.abs().max().clamp(min=1e-12)


def trained(layer: nn.Module, sample: Callable[[int], torch.Tensor], steps: int = 8) -> Program:
    """Train ``layer`` behind a ReLU on samples."""
    model = nn.Sequential()
    model.add_module("front", nn.Identity())
    model.add_module("fp8", layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def loss_of(step: int) -> torch.Tensor:
        return model(sample(step)).square().mean()

    return loop([model], [optimizer], loss_of, steps=steps)


@STORIES.tell("fp8_saturation", "fp8", "forward")
def a_constant_scale_and_a_clamp_before_the_cast(*, sick: bool) -> Program:
    """Values clamped to the limits never overflow, and are clipped anyway."""
    scale = torch.tensor(30000.0 if sick else 8000.0)
    limit = torch.finfo(E5M2).max
    layer = Quantized((32, 8), lambda _x: scale, lambda x: x.clamp(-limit, limit).to(E5M2))
    return trained(layer, lambda _step: torch.randn(64, 32))
