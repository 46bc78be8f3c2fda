"""Small real trainings, one per recipe that people use, and a digest of all they produce."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


@dataclass
class Run:
    """One training, ready to go."""

    models: list[nn.Module]
    optimizers: list[torch.optim.Optimizer]
    scaler: torch.amp.GradScaler | None
    steps: int = 12
    dtype: torch.dtype | None = torch.float16
    accumulate: int = 1
    clip: bool = False
    schedulers: list[Any] = field(default_factory=list)
    poison: tuple[int, ...] = ()
    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    after_step: Callable[[int], None] = lambda _step: None

    def loop(self) -> None:
        """The documented AMP loop."""
        for step in range(self.steps):
            for micro in range(self.accumulate):
                loss = self.forward(step, micro) / self.accumulate
                scaled = loss if self.scaler is None else self.scaler.scale(loss)
                scaled.backward()
                self.losses.append(float(loss.detach()))
            self.update()
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            for scheduler in self.schedulers:
                scheduler.step()
            if self.scaler is not None:
                self.scales.append(self.scaler.get_scale())
            self.after_step(step)

    def forward(self, step: int, _micro: int) -> torch.Tensor:
        x = torch.randn(16, 8)
        enabled = self.dtype is not None
        with torch.autocast("cpu", dtype=self.dtype or torch.bfloat16, enabled=enabled):
            for model in self.models:
                x = model(x)
        loss = x.float().square().mean()
        return loss * float("inf") if step in self.poison else loss

    def update(self) -> None:
        if self.scaler is None:
            for optimizer in self.optimizers:
                optimizer.step()
            return
        for optimizer in self.optimizers:
            if self.clip:
                self.scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(
                    [p for g in optimizer.param_groups for p in g["params"]], 1.0
                )
            self.scaler.step(optimizer)
        self.scaler.update()

    def digest(self) -> str:
        """Hash of losses, scales, weights, buffers, optimizer state and random state."""
        digest = hashlib.sha256(repr((self.losses, self.scales)).encode())
        for model in self.models:
            for name, value in sorted(model.state_dict().items()):
                digest.update(name.encode() + value.numpy().tobytes())
        for optimizer in self.optimizers:
            for state in optimizer.state_dict()["state"].values():
                for name, value in sorted(state.items()):
                    digest.update(f"{name}{value}".encode())
        if self.scaler is not None:
            digest.update(repr(sorted(self.scaler.state_dict().items())).encode())
        digest.update(torch.get_rng_state().numpy().tobytes() + repr(random.getstate()).encode())
        return digest.hexdigest()


class Gain(nn.Module):
    """Multiplies."""

    by = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


class Net(nn.Module):
    """Linear layers, BatchNorm buffers and dropout: weights, buffers and random state."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


class Attending(nn.Module):
    """Attention, a convolution, and a part that is computed again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1)
        self.convolution = nn.Conv1d(8, 8, 3, padding=1, groups=2)
        self.again = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x, x, x)[0]
        x = x + self.convolution(x.t()[None])[0].t()
        return x + checkpoint(self.again, x, use_reentrant=False)


def scaler(init_scale: float = 2.0**20, growth_interval: int = 4, **options: Any) -> Any:
    """A CPU GradScaler that overflows at first and grows soon."""
    return torch.amp.GradScaler(
        "cpu", init_scale=init_scale, growth_interval=growth_interval, **options
    )


def adamw(model: nn.Module, **options: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, **options)


def _one(make_scaler: Callable[[], Any], **options: Any) -> Callable[[], Run]:
    settings = {k: options.pop(k) for k in ("fused", "foreach") if k in options}

    make_model = options.pop("model", Net)

    def build() -> Run:
        model = make_model()
        return Run([model], [adamw(model, **settings)], make_scaler(), **options)

    return build


def _two_optimizers() -> Run:
    first, second = Net(), Net()
    optimizers = [torch.optim.SGD(first.parameters(), lr=1e-2), adamw(second, fused=True)]
    return Run([first, second], optimizers, scaler(), accumulate=2, clip=True, poison=(7, 8))


def _scheduled() -> Run:
    model = Net()
    optimizer = adamw(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    return Run([model], [optimizer], scaler(), schedulers=[scheduler])


RECIPES: dict[str, Callable[[], Run]] = {
    "fp16-foreach": _one(scaler, foreach=True, poison=(6, 7, 8, 9, 10, 11)),
    "fp16-for-loop": _one(scaler, foreach=False, poison=(6, 7, 8, 9, 10, 11)),
    "fp16-fused": _one(scaler, fused=True, poison=(6, 7, 8, 9, 10, 11)),
    "fp16-accumulated-clipped": _one(scaler, accumulate=3, clip=True),
    "fp16-scheduled": _scheduled,
    "two-optimizers": _two_optimizers,
    "bf16-without-scaler": _one(lambda: None, dtype=torch.bfloat16),
    "bf16-with-scaler": _one(scaler, dtype=torch.bfloat16),
    "bf16-disabled-scaler": _one(lambda: scaler(enabled=False), dtype=torch.bfloat16),
    "bf16-checkpointed-attention": _one(scaler, dtype=torch.bfloat16, model=Attending),
    "fp32": _one(lambda: None, dtype=None, fused=True),
}


def build(recipe: str) -> Run:
    """Build a recipe from a fixed seed, with the same random state each time."""
    torch.manual_seed(0)
    random.seed(0)
    return RECIPES[recipe]()
