"""What watching costs a search for hyper-parameters: 20 fits of 45 steps, watched and bare in turn.

Run as ``python benchmarks/short_fits.py [--children]``: in one process, or in a new one for each fit.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

import ampwatch

FITS, STEPS = 20, 45


def fit(seed: int, *, watched: bool) -> float:
    """Return the seconds of one fit of a small model, without what sets it up."""
    torch.manual_seed(seed)
    layers = [nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    watch = ampwatch.monitor(model, scaler, optimizer=optimizer, serve=False) if watched else None
    x, y = torch.randn(256, 32), torch.randint(0, 10, (256,))
    began = time.perf_counter()
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    seconds = time.perf_counter() - began
    if watch is not None:
        watch.close()
    return seconds


def in_child(seed: int, *, watched: bool) -> float:
    """Return the seconds of a fit in a process of its own, whose first fit it is."""
    command = [sys.executable, str(Path(__file__)), "--one", str(seed), str(int(watched))]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Print the ratios as JSON."""
    if "--one" in sys.argv:
        seed, watched = map(int, sys.argv[-2:])
        fit(seed, watched=False)  # what PyTorch does at its first step
        print(fit(seed, watched=bool(watched)))
        return
    one = in_child if "--children" in sys.argv else fit
    one(0, watched=False)
    pairs = [(one(seed, watched=False), one(seed, watched=True)) for seed in range(FITS)]
    ratios = [watched / bare for bare, watched in pairs]
    total = sum(watched for _, watched in pairs) / sum(bare for bare, _ in pairs)
    found = {
        "first": ratios[0],
        "median of the others": statistics.median(ratios[1:]),
        "all together": total,
        "torch": torch.__version__,
    }
    print(json.dumps({key: round(v, 2) if isinstance(v, float) else v for key, v in found.items()}))


if __name__ == "__main__":
    main()
