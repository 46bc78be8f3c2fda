"""What a program makes of gradients between ``unscale_`` and the step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.wire.records import Finding

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = 1e-9
"""Size of the gradients: scaled they fit into float16, and unscaled they do not."""

Change = "Callable[[list[nn.Parameter]], None]"


def found(change: Change, *, before: bool = False, size: float = TINY) -> list[Finding]:
    """Return what is said of gradients that become zero, in a training that changes them by itself."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, eps=1e-15)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    parameters = list(model.parameters())
    with ampwatch.monitor(model, scaler, level="deep", serve=False) as watch:
        for _ in range(8):
            optimizer.zero_grad()
            scaler.scale(size * model(torch.randn(16, 8)).square().mean()).backward()
            with torch.no_grad():
                if before:
                    change(parameters)
                scaler.unscale_(optimizer)
                if not before:
                    change(parameters)
            scaler.step(optimizer)
            scaler.update()
        assert not any(guard.off for guard in watch._session.bus.guards)
    return [finding for finding in watch.findings if finding.kind == "grad_underflow"]


def exchange(parameters: Any, dtype: torch.dtype = torch.float16) -> None:
    """In one bucket, and written back."""
    bucket = torch.cat([p.grad.flatten() for p in parameters]).to(dtype)
    for p, part in zip(parameters, bucket.split([p.numel() for p in parameters]), strict=True):
        p.grad.copy_(part.view_as(p))


def replace(parameters: Any) -> None:
    """One by one, by assignment."""
    for p in parameters:
        p.grad = p.grad.half().float()


def clip_after(parameters: Any) -> None:
    exchange(parameters)
    nn.utils.clip_grad_norm_(parameters, 1.0)


def mask(parameters: Any) -> None:
    for p in parameters:
        p.grad.mul_(torch.rand_like(p) > 0.9)


def freeze(parameters: Any) -> None:
    """Gradients of all sizes become zero."""
    for p in parameters[:2]:
        p.grad.zero_()


def keep_largest(parameters: Any) -> None:
    """As gradients are compressed: what is small goes first, wherever float16 ends."""
    for p in parameters:
        p.grad.mul_(p.grad.abs() >= p.grad.abs().quantile(0.9))


@pytest.mark.parametrize("change", [exchange, replace, clip_after])
def test_gradients_that_float16_makes_zero_after_unscaling_are_told(change: Change) -> None:
    """With the parameter, and what to change."""
    (finding,) = found(change)

    assert (finding.phase, finding.dtype) == ("optimizer", "float16")
    assert finding.where.startswith("param:")
    assert "unscale_" in finding.advice


def test_the_same_is_right_before_unscaling() -> None:
    """Scaled gradients are what float16 is for."""
    assert found(exchange, before=True) == []


@pytest.mark.rotating
@pytest.mark.parametrize("change", [mask, keep_largest, lambda p: exchange(p, torch.bfloat16)])
def test_zeros_that_no_format_has_made_are_left_alone(change: Change) -> None:
    """Small gradients are kept, or large ones are lost as well."""
    assert found(change) == []
    assert found(change, size=1.0) == []


def test_gradients_that_are_set_to_zero_are_left_alone() -> None:
    """Those of frozen layers."""
    assert found(freeze, size=1.0) == []
