"""What outlives a step and is broken: it stays so until it was seen to be mended."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

import ampwatch

SKIPPED = (6, 24)
"""Iterations whose loss is infinite: parameters are measured in these, and in the first one."""


@pytest.mark.parametrize(("is_repaired", "level"), [(False, "broken"), (True, "finished")])
def test_an_embedding_with_a_row_of_nan_is_broken_until_it_is_repaired(
    *, is_repaired: bool, level: str
) -> None:
    """That row is not looked up again, so nothing else shows it, and no parameter is measured again."""
    torch.manual_seed(0)
    embedding, linear = nn.Embedding(16, 4), nn.Linear(4, 16)
    model = nn.Sequential(embedding, linear)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with ampwatch.monitor(model, scaler, sample_every=10_000, serve=False) as watch:
        for step in range(300):
            with torch.no_grad():
                if step == 5:
                    embedding.weight[15] = math.nan
                if step == 12 and is_repaired:
                    embedding.weight[15] = 0.0
            tokens = torch.randint(15, (32,))
            with torch.autocast("cpu", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(tokens), tokens)
            optimizer.zero_grad()
            scaler.scale(loss * math.inf if step in SKIPPED else loss).backward()
            scaler.step(optimizer)
            scaler.update()

    (found,) = [f for f in watch.findings if f.kind == "param_nonfinite"]
    assert (found.where, found.last_step < 40) == ("param:0.weight", True)
    assert json.loads(watch.report(format="json"))["verdict"]["level"] == level
