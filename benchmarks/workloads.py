"""The trainings whose steps are timed: models, data, and one AMP step each.

B = batch, T = tokens, D = features, V = vocabulary, H = heads.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name everybody gives it

from ampwatch.training.model.machine import cpu_dtypes

if TYPE_CHECKING:
    from collections.abc import Callable

V = 512
CLASSES = 10


class Block(nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(features)
        self.qkv = nn.Linear(features, 3 * features)
        self.project = nn.Linear(features, features)
        self.norm_mlp = nn.LayerNorm(features)
        self.mlp = nn.Sequential(
            nn.Linear(features, 4 * features), nn.GELU(), nn.Linear(4 * features, features)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, T, D) to (B, T, D)."""
        batch, tokens, features = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, tokens, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, tokens, features))
        return x + self.mlp(self.norm_mlp(x))


class GPT(nn.Module):
    """A small decoder-only language model."""

    def __init__(self, layers: int, features: int, tokens: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(V, features)
        self.positions = nn.Parameter(0.02 * torch.randn(tokens, features))
        self.blocks = nn.Sequential(*(Block(features, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(features)
        self.head = nn.Linear(features, V, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens (B, T) to logits (B, V, T)."""
        x = self.blocks(self.tokens(tokens) + self.positions)
        return self.head(self.norm(x)).transpose(1, 2)


class Residual(nn.Module):
    """The basic block of a ResNet: two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, inputs, H, W) to (B, outputs, H / stride, W / stride)."""
        return F.relu(self.body(x) + self.shortcut(x))


def resnet18(width: int) -> nn.Sequential:
    """Return a ResNet-18 with the stem for small pictures; He et al. 2015, section 4.2."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    inputs = width
    for stage in range(4):
        outputs = width * 2**stage
        layers += [
            Residual(inputs, outputs, 1 if stage == 0 else 2),
            Residual(outputs, outputs, 1),
        ]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


def mlp(depth: int, features: int) -> nn.Sequential:
    """Return ``depth`` linear layers with ReLU: many small tensors."""
    layers = (layer for _ in range(depth) for layer in (nn.Linear(features, features), nn.ReLU()))
    return nn.Sequential(*layers)


class Pool(nn.Module):
    """Attention over tokens, of which every one is masked: its output is NaN."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.score = nn.Linear(features, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, T, D) to (B, D)."""
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        shares = self.score(x).squeeze(-1).masked_fill(mask, -math.inf).softmax(-1)
        return (shares.unsqueeze(-1) * x).sum(1)


@dataclass(frozen=True)
class Workload:
    """A model and its data.

    Attributes:
        model: Makes the model.
        inputs: Makes one batch.
        targets: Makes what the model is to answer to it.
        loss: Of the model's output and the targets.
        dtype: Of the autocast region; of bfloat16 there is none on a CPU without instructions for it.
    """

    model: Callable[[], nn.Module]
    inputs: Callable[[], torch.Tensor]
    targets: Callable[[], torch.Tensor]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    dtype: torch.dtype


def _gpt(layers: int, features: int, tokens: int, batch: int, dtype: torch.dtype) -> Workload:
    def text() -> torch.Tensor:
        return torch.randint(V, (batch, tokens))

    return Workload(
        lambda: GPT(layers, features, tokens, heads=features // 32),
        text,
        text,
        F.cross_entropy,
        dtype,
    )


def _cnn(width: int, pixels: int, batch: int) -> Workload:
    return Workload(
        lambda: resnet18(width),
        lambda: torch.randn(batch, 3, pixels, pixels),
        lambda: torch.randint(CLASSES, (batch,)),
        F.cross_entropy,
        torch.bfloat16,
    )


def _mlp(depth: int, features: int, batch: int) -> Workload:
    def numbers() -> torch.Tensor:
        return torch.randn(batch, features)

    return Workload(lambda: mlp(depth, features), numbers, numbers, F.mse_loss, torch.bfloat16)


def _failing(depth: int, features: int, tokens: int, batch: int) -> Workload:
    """Return a training of which every step fails, as long as it goes on."""
    return Workload(
        lambda: nn.Sequential(mlp(depth, features), Pool(features), nn.Linear(features, CLASSES)),
        lambda: torch.randn(batch, tokens, features),
        lambda: torch.randint(CLASSES, (batch,)),
        F.cross_entropy,
        torch.bfloat16,
    )


def _resnet() -> Workload:
    """Return the ResNet-18 of the examples, on pictures of the size of its digits."""

    def model() -> nn.Module:
        sys.path.append(str(Path(__file__).parents[1] / "examples"))
        from resnet_fine_tune import ResNet18  # noqa: PLC0415 - wants scikit-learn, for its digits

        return ResNet18(CLASSES)

    return Workload(
        model,
        lambda: torch.rand(64, 1, 8, 8),
        lambda: torch.randint(CLASSES, (64,)),
        F.cross_entropy,
        torch.bfloat16,
    )


def many_parameters(number: int) -> Workload:
    """Return a model of ``number`` parameter tensors of 4096 elements each."""

    def numbers() -> torch.Tensor:
        return torch.randn(4, 64)

    return Workload(
        lambda: nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(number))),
        numbers,
        numbers,
        F.mse_loss,
        torch.bfloat16,
    )


# A bare step takes 30 to 150 ms: short enough to show overhead, long enough to be real. Those that are
# called short have the modules of the others and less data: of a step of 20 ms ampwatch takes a larger
# share, and 500 of them are soon over.
# bfloat16, because float16 kernels of CPUs are slow and would hide it.
WORKLOADS = {
    "cpu": {
        "gpt": _gpt(layers=5, features=256, tokens=128, batch=4, dtype=torch.bfloat16),
        "cnn": _cnn(width=64, pixels=32, batch=4),
        "mlp": _mlp(depth=100, features=128, batch=512),
        "gpt-short": _gpt(layers=5, features=256, tokens=64, batch=1, dtype=torch.bfloat16),
        "cnn-short": _cnn(width=32, pixels=32, batch=2),
        "mlp-short": _mlp(depth=100, features=128, batch=128),
        "resnet": _resnet(),
        "gpt-fp16": _gpt(layers=6, features=96, tokens=128, batch=1, dtype=torch.float16),
        "micro": _mlp(depth=1, features=4, batch=4),
        "failing": _failing(depth=24, features=256, tokens=32, batch=8),
    },
    "cuda": {
        "gpt": _gpt(layers=12, features=768, tokens=512, batch=32, dtype=torch.bfloat16),
        "cnn": _cnn(width=64, pixels=128, batch=128),
        "mlp": _mlp(depth=100, features=2048, batch=8192),
        "gpt-fp16": _gpt(layers=12, features=768, tokens=512, batch=32, dtype=torch.float16),
        "micro": _mlp(depth=1, features=4, batch=4),
    },
}


def computes_in_bfloat16(device: str) -> bool:
    """Return whether there are instructions for bfloat16: emulated, a step takes ten times as long, and hides overhead."""
    return device != "cpu" or "bfloat16" in cpu_dtypes()


class Training:
    """A workload on a device, ready to step.

    The scaler is enabled in bfloat16 as well: not because it is of use there, but so
    that there is something to watch. Its scale is small enough never to overflow.

    Args:
        workload: What to train.
        device: Where.
    """

    def __init__(self, workload: Workload, device: str) -> None:
        torch.manual_seed(0)
        self.model = workload.model().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self.scaler = torch.amp.GradScaler(device, init_scale=1024.0)
        self._inputs = workload.inputs().to(device)
        self._targets = workload.targets().to(device)
        self._loss = workload.loss
        self._dtype = workload.dtype
        self._device = device
        self._autocasts = workload.dtype is not torch.bfloat16 or computes_in_bfloat16(device)

    def step(self) -> None:
        """Take one step, as PyTorch's AMP recipe writes it."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._device, dtype=self._dtype, enabled=self._autocasts):
            loss = self._loss(self.model(self._inputs), self._targets)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
