"""A small transformer that trains on the same batches each time, and ways to change one thing in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import ampwatch
from ampwatch.lab.tape.files import Tape, find_tapes, read_tape

WIDTH, HEADS, WORDS, LENGTH, BATCH, BLOCKS = 32, 4, 60, 12, 8, 3


class Attention(nn.Module):
    """Attention whose softmax is computed in ``softmax_dtype``."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.keeps_float32 = True
        self.scale = 1.0 / math.sqrt(WIDTH // HEADS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(BATCH, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        logits = q @ k.transpose(-1, -2) * self.scale
        if self.keeps_float32:
            weights = logits.float().softmax(-1).to(v.dtype)
        else:
            with torch.autocast("cpu", enabled=False):
                weights = logits.softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))


class Block(nn.Module):
    """Attention and an MLP, each behind a LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
        self.drop = nn.Dropout(0.1)
        self.residual = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.residual * self.drop(self.mlp(self.norm2(x)))


class Transformer(nn.Module):
    """A language model of three blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@dataclass
class Planted:
    """Ways to change one thing; nothing is changed as it stands.

    Attributes:
        dtype: Dtype of autocast; ``None`` without.
        drops: Whether dropout is on.
        model: Called with the model before it trains.
        batch: Called with the number of a step; returns the number of the batch that it gets.
        scale: Initial loss scale, under float16.
        learning_rate: Of AdamW.
        steps: Steps that are trained.
        images: Whether a small ResNet is trained with SGD instead.
        settings: Of ampwatch.
    """

    dtype: torch.dtype | None = None
    drops: bool = False
    model: Callable[[Transformer], object] = lambda _model: None
    batch: Callable[[int], int] = lambda step: step
    scale: float = 1024.0
    learning_rate: float = 1e-3
    steps: int = 4
    images: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


def train(directory: Path, planted: Planted | None = None) -> Tape:
    """Train, and return the tape."""
    planted = planted or Planted()
    settings = {
        "lab": True,
        "record_dir": str(directory),
        "record_first": planted.steps,
        **planted.settings,
    }

    def watched(model: nn.Module, optimizer: Any, scaler: Any) -> Any:
        scaler = scaler if scaler.is_enabled() else None
        return ampwatch.monitor(model, scaler, optimizer=optimizer, serve=False, **settings)

    run(planted, watched)
    return read_tape(find_tapes(directory)[0])


def run(
    planted: Planted,
    watched: Callable[[nn.Module, Any, Any], Any],
    after: Callable[[int], object] = lambda _step: None,
) -> None:
    """Train under the context that ``watched`` makes of model, optimizer and scaler.

    Args:
        planted: What to change.
        watched: Makes the context.
        after: Called with the number of each step when it is over.
    """
    torch.manual_seed(0)
    model, optimizer = _images() if planted.images else _transformer(planted)
    is_scaled = planted.dtype is torch.float16
    scaler = torch.amp.GradScaler("cpu", init_scale=planted.scale, enabled=is_scaled)
    with watched(model, optimizer, scaler):
        for step in range(planted.steps):
            _step(model, optimizer, scaler, step, planted)
            after(step)


def _transformer(planted: Planted) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = Transformer().train()
    if not planted.drops:
        for block in model.blocks:
            block.drop.eval()
    planted.model(model)
    return model, torch.optim.AdamW(model.parameters(), lr=planted.learning_rate)


class Convolutions(nn.Module):
    """Convolutions with BatchNorm around a residual connection, on images made of words."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.last = nn.Linear(8, LENGTH * WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.first(words.float().div(WORDS).view(BATCH, 1, 3, -1))
        return self.last((x + self.second(x)).mean((2, 3)))


def _images() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = Convolutions()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _step(model: nn.Module, optimizer: Any, scaler: Any, step: int, planted: Planted) -> None:
    drawn = torch.Generator().manual_seed(planted.batch(step))
    words = torch.randint(WORDS, (BATCH, LENGTH), generator=drawn)
    targets = torch.randint(WORDS, (BATCH * LENGTH,), generator=drawn)
    torch.manual_seed(step)  # of dropout
    dtype = planted.dtype or torch.bfloat16
    with torch.autocast("cpu", dtype=dtype, enabled=planted.dtype is not None):
        loss = functional.cross_entropy(model(words).view(-1, WORDS).float(), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
