"""Trainings whose attention logits grow until a softmax saturates."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize, scaled_dot_product_attention

from tests.stories.stage import Program, Stories, loop

STORIES = Stories()

WIDTH, LENGTH, WORDS = 16, 8, 16
DOUBLES_IN = 30


class Attention(nn.Module):
    """One head, op by op or fused, with QK norm or without."""

    def __init__(self, *, is_fused: bool, is_normed: bool) -> None:
        super().__init__()
        self.is_fused, self.is_normed = is_fused, is_normed
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.places.weight
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.is_normed:
            q, k = (normalize(y, dim=-1) * WIDTH**0.5 for y in (q, k))
        if self.is_fused:
            return scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return (q @ k.transpose(-1, -2) / math.sqrt(WIDTH)).softmax(-1) @ v


def _train(*, sick: bool, is_fused: bool) -> Program:
    attention = Attention(is_fused=is_fused, is_normed=not sick)
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), attention, nn.Linear(WIDTH, WORDS))
    # Query and key alone, so that nothing but the logits grows.
    grown = [attention.q.weight, attention.k.weight]
    optimizer = torch.optim.AdamW(grown, lr=1e-3)

    def loss_of(step: int) -> torch.Tensor:
        optimizer.param_groups[0]["lr"] = 1e-3 * 2 ** (step / DOUBLES_IN)
        x = torch.randint(WORDS, (4, LENGTH))
        return cross_entropy(model(x).transpose(1, 2), x.roll(1, 1))

    return loop([model], [optimizer], loss_of, steps=240)


@STORIES.tell("logit_growth", "1", "forward", "_softmax")
def query_and_key_without_a_norm(*, sick: bool) -> Program:
    """Softmax op by op."""
    return _train(sick=sick, is_fused=False)


@STORIES.tell("logit_growth", "1", "forward")
def fused_attention_without_a_norm(*, sick: bool) -> Program:
    """Only query and key are to be seen."""
    return _train(sick=sick, is_fused=True)
