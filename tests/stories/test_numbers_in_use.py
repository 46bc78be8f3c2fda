"""Sentences of findings that name what this training uses: its parameters, its growth interval."""

from __future__ import annotations

import math

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


def test_the_way_back_of_a_scale_is_that_of_its_own_growth_interval() -> None:
    """In the sentence and in the advice; and its numbers are those of the evidence, step by step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", growth_interval=60)
    with ampwatch.monitor(model, scaler, serve=False) as watch:
        for step in range(200):
            batch = torch.randn(32, 32) * (1e6 if 40 <= step < 60 else 1.0)
            with torch.autocast("cpu", dtype=torch.float16):
                out = model(batch)
            scaler.scale(5e-7 * out.float().square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    assert [f.kind for f in watch.findings if f.root] == ["scale_stuck_low"]
    (stuck,) = [f for f in watch.findings if f.kind == "scale_stuck_low"]
    assert "at the growth interval of 60" in stuck.summary
    assert f"stuck at 2^{math.log2(stuck.evidence['loss_scale']):.0f}," in stuck.summary
    assert f"takes {stuck.evidence['steps_back']:.0f} steps" in stuck.summary
    assert "growth_interval=20)" in stuck.advice
