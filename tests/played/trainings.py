"""Small trainings with mixed precision on the played device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

DEVICE = "played"

BREAKS = [1.0] * 7 + [math.inf] * 4 + [1.0] * 9
"""Factors of losses: a training that overflows for some steps, and goes on."""


def at_night(*values: object) -> list[Any]:
    """Return the values of a parameter that are left to the night."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]


def model() -> nn.Module:
    """Return three layers, with the same weights each time."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8))
    return layers.to(DEVICE)


class Training:
    """A float16 training with a scaler.

    Args:
        flavour: Implementation of the optimizer: ``fused``, ``foreach`` or ``for-loop``.
        dtype: Dtype of autocast.
        init_scale: The first loss scale.
    """

    def __init__(
        self,
        flavour: str = "fused",
        dtype: torch.dtype = torch.float16,
        init_scale: float = 16.0,
    ) -> None:
        self.model = model()
        chosen = {"fused": flavour == "fused", "foreach": flavour == "foreach"}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, **chosen)
        self.scaler = torch.amp.GradScaler(DEVICE, init_scale=init_scale, growth_interval=5)
        self.dtype = dtype
        self.batch = torch.randn(4, 16).to(DEVICE)
        self.losses: list[torch.Tensor] = []

    def step(self, factor: float = 1.0) -> None:
        """Train one step."""
        with torch.autocast(DEVICE, dtype=self.dtype):
            loss = self.model(self.batch).float().square().mean() * factor
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.detach())

    def run(self, factors: Sequence[float] = BREAKS) -> None:
        """Train."""
        for factor in factors:
            self.step(factor)

    def bits(self) -> list[Any]:
        """Return everything that a training leaves behind, to be compared bit for bit."""
        state = self.optimizer.state_dict()["state"]
        tensors = [*self.losses, *self.model.state_dict().values()]
        tensors += [v for entry in state.values() for v in entry.values()]
        return [
            *(t.cpu().reshape(-1).view(torch.uint8).tolist() for t in tensors),
            self.scaler.get_scale(),
            torch.random.get_rng_state().tolist(),
        ]
