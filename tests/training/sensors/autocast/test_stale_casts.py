"""Casts that are older than the weights, proven from graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import ampwatch

if TYPE_CHECKING:
    from ampwatch.wire.records import Finding


def stale(*, model: nn.Module, steps: int = 3, **how: Any) -> list[Finding]:
    """Take some steps in one region; return what is said of it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dtype = how.pop("dtype", torch.bfloat16)
    with (
        ampwatch.monitor(model, level="light", serve=False) as watch,
        torch.autocast("cpu", dtype=dtype, **how),
    ):
        for _ in range(steps):
            optimizer.zero_grad()
            x = torch.ones(4, 8, dtype=next(model.parameters()).dtype)
            model(x).float().square().mean().backward()
            optimizer.step()
    return [f for f in watch.findings if f.kind == "stale_autocast_cache"]


def test_it_is_counted_as_long_as_it_lasts() -> None:
    """Each backward through such casts counts; the first cannot be one."""
    (finding,) = stale(model=nn.Linear(8, 2), steps=9)
    assert finding.count == 8


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("model", "how"),
    [
        (nn.Linear(8, 2), {"cache_enabled": False}),
        (nn.Linear(8, 2), {"enabled": False}),
        (nn.Linear(8, 2, dtype=torch.bfloat16), {}),
        (nn.LayerNorm(8), {}),
    ],
    ids=["no cache", "disabled", "half already", "never cast"],
)
def test_where_nothing_is_kept_nothing_is_stale(model: nn.Module, how: dict[str, Any]) -> None:
    """The proof is in the graph, not in the region."""
    assert stale(model=model, **how) == []
