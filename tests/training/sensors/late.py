"""Devices that are behind, for tests that have none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampwatch.training.devices import Link

BEHIND = 3
"""How often the host asks in vain before something arrives."""


class FakeDevice(Link):
    """Treats CPU memory as a device whose work is done when the test says so."""

    reads_in_place = False

    def __init__(self) -> None:
        self.done = self.recorded = self.allocations = 0
        self.captures = False

    def may_ask(self, devices: Any) -> bool:
        return not self.captures

    def landing_place(self, numel: int) -> torch.Tensor:
        self.allocations += 1
        return torch.zeros(numel)

    def make_event(self, device: torch.device) -> Any:
        return FakeEvent(self)

    def stream(self, device: torch.device) -> Any:
        return None


class FakeEvent:
    """Has passed when its device has done as much."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.number = 0

    def record(self, _stream: Any) -> None:
        self.device.recorded += 1
        self.number = self.device.recorded

    def query(self) -> bool:
        return self.device.done >= self.number


class LateDevice(FakeDevice):
    """Treats CPU memory as a device whose work is done some questions after it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def make_event(self, device: torch.device) -> Any:
        return LateEvent(self)


class LateEvent:
    """Has passed a while after it was recorded."""

    def __init__(self, device: LateDevice) -> None:
        self.device = device
        self.at = 0

    def record(self, _stream: Any) -> None:
        self.at = self.device.asked

    def query(self) -> bool:
        self.device.asked += 1
        return self.device.asked - self.at > BEHIND


class Waits(TorchDispatchMode):
    """Counts what would wait for a device: reads of its scalars, and copies that block."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.ops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        self.ops += 1
        self.count += name in ("_local_scalar_dense", "item", "nonzero", "equal", "is_nonzero")
        is_copy = name in ("copy_", "_to_copy", "_copy_from")
        self.count += is_copy and not (kwargs.get("non_blocking") or args[2:3] == (True,))
        return func(*args, **kwargs)


def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have origins followed as on a device from now on, although all is in host memory."""
    from ampwatch.training.sensors.origins import sensor as following  # noqa: PLC0415 - what is patched
    from ampwatch.training.transfer import extremes  # noqa: PLC0415 - likewise

    monkeypatch.setattr(following, "is_host", lambda _device: False)
    monkeypatch.setattr(extremes, "Link", LateDevice)
