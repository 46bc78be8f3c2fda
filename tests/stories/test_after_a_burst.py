"""State that is left when a burst of bad batches is over, in a training of short steps."""

from __future__ import annotations

import torch
from torch import nn

import ampwatch


def test_the_scale_that_a_burst_leaves_behind_is_checked() -> None:
    """At the default settings: the samples after the alarm all fell into the burst itself."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    with ampwatch.monitor(model, scaler, serve=False) as watch:
        for step in range(120):
            batch = torch.randn(32, 32) * (1e6 if 40 <= step < 50 else 1.0)
            with torch.autocast("cpu", dtype=torch.float16):
                out = model(batch)
            loss = 5e-7 * out.float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    assert [f.kind for f in watch.findings if f.root] == ["scale_stuck_low"]
