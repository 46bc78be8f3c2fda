"""Three small models that return their loss: a character GPT, a CNN with batch norms, an MLP-mixer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu, scaled_dot_product_attention

if TYPE_CHECKING:
    from collections.abc import Callable


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            heads,
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        parts = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, time, width))


def mlp(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, 2)
        self.norm2, self.mlp = nn.LayerNorm(width), mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(self.norm2(x))


class CharGpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(32, 24), nn.Embedding(12, 24)
        self.blocks = nn.Sequential(Block(24), Block(24))
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 32)

    def forward(self, tokens: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        logits = self.head(self.norm(self.blocks(x)))
        return cross_entropy(logits.flatten(0, 1), after.flatten()), logits


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.norm2 = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16)
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(64, 10)

    def forward(self, images: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        x = relu(self.norm(self.first(images)))
        x = self.pool(relu(self.norm2(self.second(x))))
        logits = self.head(x.flatten(1))
        return cross_entropy(logits, classes), logits


class Mix(nn.Module):
    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.norm, self.across = nn.LayerNorm(width), mlp(places)
        self.norm2, self.within = nn.LayerNorm(width), mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 2, 2)
        self.mixes = nn.Sequential(Mix(16, 24), Mix(16, 24))
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 10)

    def forward(self, images: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        x = self.mixes(self.patches(images).flatten(2).transpose(1, 2))
        logits = self.head(self.norm(x).mean(1))
        return cross_entropy(logits, classes), logits


MODELS: dict[str, Callable[[], nn.Module]] = {"gpt": CharGpt, "cnn": Cnn, "mixer": Mixer}


def batch(name: str) -> tuple[Tensor, Tensor]:
    """Return a batch for a model."""
    if name == "gpt":
        text = torch.randint(0, 32, (6, 13))
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()
    return torch.randn(12, 3, 8, 8), torch.randint(0, 10, (12,))
