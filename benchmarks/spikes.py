"""How early growing attention logits are told: small GPTs that are made to spike, and healthy ones.

``python -m benchmarks.spikes --json FILE`` trains GPTs without QK norm on a CPU. The learning rate of some doubles every 75
iterations (``--doubles-in``) until the loss leaves its band; that of the others stays, and nothing may be said of them. Takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import ampwatch

WIDTH, HEADS, LENGTH, BATCH, WORDS, LAYERS = 32, 2, 16, 8, 32, 2
SPIKING_RATE, HEALTHY_RATE = 1e-3, 3e-3
DOUBLES_IN = 75.0
"""Iterations in which the rate of those doubles that are made to spike."""

WARM_UP = 50
SMOOTHED = 9
"""Losses of which the median is compared."""

BAND = 0.5
"""A loss that is this much above the lowest so far has left its band. Unit: nats."""

EARLY = 50
"""Iterations before that, by which it has to be told."""


class Attention(nn.Module):
    """Causal attention, op by op."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend."""
        split = x.shape[0], LENGTH, HEADS, WIDTH // HEADS
        q, k, v = (y.view(split).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        logits = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        shares = logits.masked_fill(self.mask, -math.inf).softmax(-1)
        return self.out((shares @ v).transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attention = Attention()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):
    """A small GPT without QK norm."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Predict the next word of each place."""
        return self.head(self.norm(self.blocks(self.words(text) + self.places.weight)))


def texts(chain: torch.Tensor) -> torch.Tensor:
    """Return texts of a Markov chain, each of which is said twice."""
    half = LENGTH // 2
    text = torch.empty(BATCH, LENGTH + 1, dtype=torch.long)
    text[:, 0] = torch.randint(WORDS, (BATCH,))
    for place in range(1, half):
        drawn = chain[text[:, place - 1]].cumsum(-1) < torch.rand(BATCH, 1)
        text[:, place] = drawn.sum(-1).clamp(max=WORDS - 1)
    text[:, half:LENGTH] = text[:, :half]
    text[:, LENGTH] = text[:, 0]
    return text


class Training:
    """A training of one, and whether its loss has left its band.

    Args:
        seed: Of the weights and of the texts.
        spikes: Whether its learning rate grows.
        doubles_in: Iterations in which the rate doubles, if it does.

    Attributes:
        model: The GPT.
        optimizer: To be stepped after each ``backward``.
        left: Iteration in which the loss left its band; -1 before.
    """

    def __init__(self, seed: int, doubles_in: float = DOUBLES_IN, *, spikes: bool) -> None:
        torch.manual_seed(seed)
        self.model = Gpt()
        self.left = -1
        self._chain = (2 * torch.randn(WORDS, WORDS)).softmax(-1)
        self._rate = SPIKING_RATE if spikes else HEALTHY_RATE
        self._doubles_in = doubles_in if spikes else math.inf
        parameters = self.model.parameters()
        self.optimizer = torch.optim.AdamW(parameters, lr=self._rate, betas=(0.9, 0.99))
        self._losses: list[float] = []
        self._lowest = math.inf

    def backward(self, step: int) -> None:
        """Set the rate, and compute the gradients of an iteration."""
        growth = 2.0 ** (step / self._doubles_in)
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate * growth * min(1.0, (step + 1) / WARM_UP)
        text = texts(self._chain)
        logits = self.model(text[:, :-1]).reshape(-1, WORDS)
        loss = nn.functional.cross_entropy(logits, text[:, 1:].reshape(-1))
        self.optimizer.zero_grad()
        loss.backward()
        self._losses.append(float(loss.detach()))
        smooth = median(self._losses[-SMOOTHED:])
        self._lowest = min(self._lowest, smooth)
        if self.left < 0 and smooth > self._lowest + BAND:
            self.left = step


def train(seed: int, steps: int, doubles_in: float, *, spikes: bool) -> dict[str, Any]:
    """Train one; return when the growth was told, and when the loss left its band (-1: never)."""
    training = Training(seed, doubles_in, spikes=spikes)
    told = -1
    with ampwatch.monitor(training.model, optimizer=training.optimizer, serve=False) as watch:
        for step in range(steps):
            training.backward(step)
            training.optimizer.step()
            if told < 0 and any(f.kind == "logit_growth" for f in watch.findings):
                told = step
            if training.left >= 0 and told >= 0:
                break
        found = [f.summary for f in watch.findings if f.kind == "logit_growth"]
    return {"seed": seed, "spikes": spikes, "told": told, "left": training.left, "found": found}


def is_right(row: dict[str, Any]) -> bool:
    """Whether it was told early enough; of a healthy one nothing."""
    if not row["spikes"]:
        return bool(row["told"] < 0)
    return bool(0 <= row["told"] <= row["left"] - EARLY)


def main() -> None:
    """Train all, print each, and the totals at the end."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--spiking", type=int, default=10, help="seeds that are made to spike")
    parser.add_argument("--healthy", type=int, default=20, help="healthy seeds")
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first of each")
    parser.add_argument("--steps", type=int, default=600, help="iterations of one that spikes")
    parser.add_argument("--quiet-steps", type=int, default=400, help="iterations of a healthy one")
    parser.add_argument("--doubles-in", type=float, default=DOUBLES_IN, help="iterations")
    parser.add_argument("--json", type=Path, help="where to keep the results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for spikes, seeds in ((True, given.spiking), (False, given.healthy)):
        for seed in range(given.first_seed, given.first_seed + seeds):
            steps = given.steps if spikes else given.quiet_steps
            row = train(seed, steps, given.doubles_in, spikes=spikes)
            row["right"] = is_right(row)
            rows.append(row)
            print(*(f"{key}={row[key]}" for key in ("spikes", "seed", "told", "left", "right")))
            print(*row["found"], sep="\n", flush=True)
            if given.json:
                given.json.write_text(json.dumps(rows, indent=1) + "\n")
    for spikes in (True, False):
        of_them = [row["right"] for row in rows if row["spikes"] is spikes]
        print("spiking" if spikes else "healthy", f"{sum(of_them)} of {len(of_them)} right")


if __name__ == "__main__":
    main()
