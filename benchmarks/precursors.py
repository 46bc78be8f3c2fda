"""Which quantities rise before a loss spikes, in the small GPTs of ``spikes.py``: outlier features, and updates.

``python -m benchmarks.precursors --json FILE`` trains them without ampwatch. Of each quantity the largest value of all healthy
trainings is a threshold; it says in how many of those that spike it is passed 50 iterations before the loss leaves
its band. A threshold taken from what it is held against is the best that a quantity can do. Takes some minutes.
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

from benchmarks.spikes import EARLY, Block, Training

EVERY = 4
"""Iterations of which one is measured."""

FIRST = 100
"""Iterations at the start, in which everything moves, that count for nothing."""

QUANTITIES = ("output_largest_over_rms", "update_over_weight")


def train(seed: int, steps: int, *, spikes: bool) -> dict[str, Any]:
    """Train one; return the largest of each quantity over its modules, and when the loss left its band."""
    training = Training(seed, spikes=spikes)
    model, optimizer = training.model, training.optimizer
    outliers: list[float] = []

    def measure(_module: nn.Module, _given: Any, out: torch.Tensor) -> None:
        if step % EVERY == 0:
            out = out.detach()
            outliers.append(float(out.abs().amax() / out.square().mean().sqrt()))

    for module in model.modules():
        if isinstance(module, Block):
            module.register_forward_hook(measure)
    weights = [p for p in model.parameters() if p.dim() > 1]
    series: dict[str, list[float]] = {quantity: [] for quantity in QUANTITIES}
    for step in range(steps):
        training.backward(step)
        before = [w.detach().clone() for w in weights] if step % EVERY == 0 else []
        optimizer.step()
        if before:
            pairs = zip(weights, before, strict=True)
            updates = [float((w.detach() - old).norm() / old.norm()) for w, old in pairs]
            series["update_over_weight"].append(max(updates))
            series["output_largest_over_rms"].append(max(outliers))
            outliers.clear()
        if training.left >= 0:
            break
    return {"seed": seed, "spikes": spikes, "left": training.left, "series": series}


def smoothed(series: list[float]) -> list[float]:
    """Return medians of three, from where they count."""
    return [median(series[i - 2 : i + 1]) for i in range(FIRST // EVERY, len(series))]


def main() -> None:
    """Train all, and print for each quantity what it tells."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--spiking", type=int, default=10, help="seeds that are made to spike")
    parser.add_argument("--healthy", type=int, default=20, help="healthy seeds")
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first of each")
    parser.add_argument("--json", type=Path, help="where to keep the results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(given.first_seed, given.first_seed + max(given.spiking, given.healthy))
    spiking = [train(seed, 600, spikes=True) for seed in seeds[: given.spiking]]
    healthy = [train(seed, 400, spikes=False) for seed in seeds[: given.healthy]]
    results = {}
    for quantity in QUANTITIES:
        threshold = max(max(smoothed(row["series"][quantity])) for row in healthy)
        ahead = []
        for row in spiking:
            passed = [x > threshold for x in smoothed(row["series"][quantity])]
            at = FIRST + EVERY * passed.index(True) if any(passed) else math.inf
            ahead.append(row["left"] - at)
        highest = [max(smoothed(row["series"][quantity])) for row in spiking]
        results[quantity] = {
            "threshold": threshold,
            "highest_of_spiking": sorted(highest),
            "early": sum(lead >= EARLY for lead in ahead),
            "of": len(ahead),
            "ahead": [lead for lead in ahead if lead > -math.inf],
        }
        print(quantity, json.dumps(results[quantity]), flush=True)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
