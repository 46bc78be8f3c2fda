"""Float16 autocast without a scaler: told at the first step, and of nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.training.scalers.factors import may_be_scaled
from tests.stories.stage import brain, gradscaler, half

if TYPE_CHECKING:
    from collections.abc import Callable

Loss = torch.Tensor


def train(
    backward: Callable[[Loss], object] = Loss.backward,
    *,
    autocast: Callable[[], Any] = half,
    scaler: torch.amp.GradScaler | None = None,
    steps: bool = True,
) -> list[tuple[str, str, int]]:
    """Train for some steps at ``light``; return severity, place and first step of the finding."""
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with ampwatch.monitor(model, scaler, level="light", serve=False) as watch:
        for _ in range(3):
            with half():
                model(torch.ones(4, 8))  # an evaluation in which gradients are recorded
            with autocast():
                loss = model(torch.ones(4, 8)).float().square().mean()
            backward(loss)
            if steps:
                optimizer.step()
            optimizer.zero_grad()
    found = [f for f in watch.findings if f.kind == "fp16_without_scaler"]
    return [(f.severity.value, f.where, f.first_step) for f in found]


@pytest.mark.parametrize("scaler", [None, gradscaler(enabled=False)])
@pytest.mark.parametrize("weight", [1.0, 1e-6])
def test_it_is_told_at_the_first_step(scaler: Any, weight: float) -> None:
    assert train(lambda loss: (weight * loss).backward(), scaler=scaler) == [("info", "api", 0)]


def _scaled_by_two(loss: Loss) -> None:
    (512.0 * loss + loss).backward()


@pytest.mark.rotating
@pytest.mark.parametrize(
    "how",
    [
        {"autocast": brain},
        {"autocast": torch.enable_grad},
        {"steps": False},
        {"backward": lambda loss: (512.0 * loss).backward()},
        {"backward": _scaled_by_two},
        {"backward": lambda loss: loss.backward(torch.tensor(1000.0))},
    ],
    ids=["bfloat16", "float32", "no step", "constant", "sum", "gradient"],
)
def test_where_gradients_are_not_float16_or_may_be_scaled_it_is_silent(how: Any) -> None:
    assert train(**how) == []


def test_a_constant_that_only_a_device_knows_may_be_a_scale() -> None:
    x = torch.ones((), device="meta", requires_grad=True)
    assert may_be_scaled([x * torch.ones((), device="meta")], ())
    assert not may_be_scaled([x * 2.0], ())
