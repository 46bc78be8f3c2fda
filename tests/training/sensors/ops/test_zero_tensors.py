"""Forward-mode AD under watch: its zeros without memory are no ordinary tensors to PyTorch."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import ampwatch
from ampwatch import Monitor

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # PyTorch scripts its decompositions for forward-mode AD when it is first used.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]


def trained(level: str | None) -> tuple[list[float], Monitor | None]:
    """Train with a penalty on a tangent; without a level unwatched."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    watch = ampwatch.monitor(model, scaler, level=level, serve=False) if level else None
    losses = []
    for _ in range(8):
        data = torch.randn(4, 8)
        with torch.autocast("cpu", torch.float16), forward_ad.dual_level():
            dual = model(forward_ad.make_dual(data, torch.ones_like(data)))
            value, tangent = forward_ad.unpack_dual(dual)
            missing = torch._efficientzerotensor((4, 1), dtype=torch.float32)
            penalty = ((missing + 1) - 1 - tangent).float().square().mean()
            loss = value.float().square().mean() + penalty
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    if watch:
        watch.close()
    return losses, watch


@pytest.mark.parametrize("level", ["light", "standard", "deep"])
def test_a_number_can_be_added_to_a_missing_tangent(
    level: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With any dispatch mode on, PyTorch raises there; and no sensor fails over such a tensor."""
    alone, _ = trained(None)

    with caplog.at_level(logging.WARNING, "ampwatch"):
        watched, _ = trained(level)

    assert watched == alone
    assert caplog.messages == []


def test_the_report_says_that_ops_are_counted_no_more() -> None:
    """The report names the call because of which it is."""
    _, watch = trained("deep")

    assert watch is not None
    assert "enter_dual_level was met" in watch.report()
