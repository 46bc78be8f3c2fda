"""What breaks on a device is named as it is named on the host, although it is known later."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch import Finding
from tests.played.machine import Machine
from tests.played.trainings import DEVICE

pytestmark = pytest.mark.nightly

STEPS = 30
BREAKS_AT = 12


class Hot(nn.Module):
    """Multiplies beyond float16, from some step on."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.half() * self.factor).float()


class _Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient / (0.0 if ctx.factor != 1.0 else 1.0), None


class Custom(nn.Module):
    """Has a backward of its own, which divides by zero."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _Broken.apply(x, self.factor)  # type: ignore[no-untyped-call]
        return out


def found_on(device: str, culprit: nn.Module, level: str, outlier: int = -1) -> list[Finding]:
    """Train until it breaks and a while longer, or with one bad batch, and return the findings."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), culprit, nn.Linear(16, 4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    batch = torch.randn(4, 8).to(device)
    with ampwatch.monitor(model, scaler, level=level, serve=False) as watch:
        for step in range(STEPS if outlier < 0 else outlier + 8):
            culprit.factor = 1e7 if outlier < 0 and step >= BREAKS_AT else 1.0
            given = batch * 3e5 if step == outlier else batch
            with torch.autocast(device, dtype=torch.float16):
                loss = model(given).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return watch.findings


def _told(findings: list[Finding]) -> list[tuple[str, str, str, int]]:
    return sorted((f.kind, f.where, f.op, f.first_step) for f in findings)


@pytest.mark.parametrize("level", ["standard", "deep"])
@pytest.mark.parametrize("culprit", [Hot, Custom])
def test_findings_on_a_device_are_those_on_the_host(
    device: Machine, culprit: type[nn.Module], level: str
) -> None:
    """Kind, module, op and step; backward runs in a thread of its own there."""
    on_host = found_on("cpu", culprit(), level)
    device.waits.clear()
    on_device = found_on(DEVICE, culprit(), level)

    assert [wait for wait in device.waits if wait.is_ours] == []
    # At `standard` it depends on how long steps take which of the first ones are followed.
    end = 4 if level == "deep" else 3
    assert [one[:end] for one in _told(on_device)] == [one[:end] for one in _told(on_host)]
    assert any(f.severity == "critical" for f in on_host)


def test_a_fault_of_one_batch_is_replayed_without_a_wait(device: Machine) -> None:
    """Its values arrive later, and the remedies are tried one after the other as they do."""
    on_host = found_on("cpu", Hot(), "standard", 40)
    device.waits.clear()
    on_device = found_on(DEVICE, Hot(), "standard", 40)

    assert [wait for wait in device.waits if wait.is_ours] == []
    assert _told(on_device) == _told(on_host)
    # What is an outlier of the input is known on the host alone; what was tried is known on both.
    assert [f.tried for f in on_device] == [f.tried for f in on_host]
    assert 40 in {tried.step for f in on_device for tried in f.tried}
