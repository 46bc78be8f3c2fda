"""A small character GPT: decoder-only transformer, pre-norm, learned positions.

Legend: B = batch, T = characters of context, D = width, V = vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from ampwatch.demo.corpus import VOCABULARY


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the model and of its batches."""

    layers: int  # transformer blocks
    heads: int  # attention heads of a block; divides ``width``
    width: int  # features per character
    context: int  # characters the model looks back
    batch: int  # sequences per step


CPU_SIZE = Size(layers=6, heads=4, width=128, context=32, batch=4)
"""1.2 M parameters. Few tokens a step, as most CPUs emulate float16 matrix products,
some 15 times slower than in float32."""

CUDA_SIZE = Size(layers=6, heads=6, width=192, context=256, batch=64)
"""2.7 M parameters; every dimension a multiple of 8, as tensor cores want it."""


class CharacterGPT(nn.Module):
    """Predicts the next character."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(
            TransformerBlock(size.width, size.heads) for _ in range(size.layers)
        )
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, VOCABULARY)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Return the logits of each next character.

        Args:
            characters: Shape (B, T), int64, below ``VOCABULARY``.

        Returns:
            Shape (B, T, V).
        """
        place = torch.arange(characters.shape[1], device=characters.device)
        x = self.characters(characters) + self.positions(place)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


class TransformerBlock(nn.Module):
    """Transformer block: each branch adds to the residual stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = MLP(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the residual stream after this block, shape (B, T, D) as ``x``."""
        x = x + self.attention(self.attention_norm(x))
        y: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return y


class SelfAttention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return shape (B, T, D) as ``x``."""
        # (B, T, 3 D) -> query, key and value of (B, heads, T, D / heads) each
        parts = self.inputs(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        y: torch.Tensor = self.output(mixed.transpose(1, 2).flatten(-2))
        return y


class MLP(nn.Module):
    """The feed-forward branch.

    Attributes:
        branch_scale: What the branch is multiplied by before it joins the residual
            stream, as in models with a residual multiplier.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.branch_scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return shape (B, T, D) as ``x``."""
        y: torch.Tensor = self.down(functional.gelu(self.up(x))) * self.branch_scale
        return y
