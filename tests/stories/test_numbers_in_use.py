"""Sentences of findings that name what this training uses: its parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ampwatch


def test_the_parameters_in_float16_are_named() -> None:
    """With how many there are: the others are as they should be."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2).half())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    watch = ampwatch.monitor(model, scaler, serve=False)

    def train() -> None:
        with watch:
            with torch.autocast("cpu", dtype=torch.float16):
                out = model(torch.randn(4, 4))
            scaler.scale(out.float().square().mean()).backward()
            scaler.step(optimizer)

    with pytest.raises(ValueError, match="FP16 gradients"):
        train()

    (finding,) = [f for f in watch.findings if f.kind == "api_error"]
    assert "In float16: 1.weight, 1.bias, of 4 parameters" in finding.summary
    assert finding.evidence["in_float16"] == 2.0
