"""Sensors of ops find on a device, where numbers arrive later, the same as on a host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ampwatch.numerics.units.ops import Phase
from ampwatch.training.iteration.context import Context
from ampwatch.training.sensors.rounding.averages import Averages
from ampwatch.training.sensors.rounding.fp8_casts import Fp8Casts
from ampwatch.training.sensors.rounding.lossy_casts import LossyCasts
from ampwatch.training.sensors.rounding.sums import Sums
from ampwatch.training.transfer.deferred import Deferred
from tests.training.sensors.late import FakeDevice
from tests.training.sensors.listening import STEPPED, Listening, inside


def _casts(_model: nn.Module) -> None:
    torch.arange(1000).to(torch.bfloat16)


def _fp8(_model: nn.Module) -> None:
    zeros = torch.zeros(64)
    (zeros * (448.0 / zeros.abs().max())).to(torch.float8_e4m3fn)
    (torch.ones(64) * 1000).to(torch.float8_e4m3fn)


def _sums(_model: nn.Module) -> None:
    total = torch.tensor(256.0, dtype=torch.bfloat16)
    for _ in range(5):
        total += 1


def _averages(model: nn.Module) -> None:
    average = model.weight.detach() * 2
    for _ in range(4):
        average.lerp_(model.weight.detach(), 1e-4)


def _gradients(model: nn.Module) -> None:
    for _ in range(16):
        model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()


CASES: list[tuple[Callable[[Context], Any], Any, Callable[[nn.Module], None]]] = [
    (LossyCasts, inside("rope"), _casts),
    (Fp8Casts, inside("fp8"), _fp8),
    (Sums, inside("seen"), _sums),
    (Averages, STEPPED, _averages),
    (Sums, inside("", Phase.BACKWARD), _gradients),
]


@pytest.mark.parametrize(
    ("make", "place", "work"), CASES, ids=["casts", "fp8", "sums", "averages", "gradients"]
)
def test_what_arrives_later_is_judged_the_same(
    make: Callable[[Context], Any], place: Any, work: Callable[[nn.Module], None]
) -> None:
    """Nothing is said before the device is done, all of it after."""
    seen = []
    for device in (None, FakeDevice()):
        torch.manual_seed(0)
        model = nn.Linear(4, 3, bias=False).bfloat16()
        deferred = Deferred(device) if device is not None else Deferred()
        listening = Listening(make, model, deferred=deferred)
        listening.place = place
        with listening:
            work(model)
        before = len(listening.seen)
        if device is not None:
            assert before == 0
            device.done = device.recorded
            listening.place = STEPPED
            for _ in range(2):
                with listening:
                    pass
        seen.append([s._replace(site=s.site._replace(step=0, source="")) for s in listening.seen])

    assert seen[0]
    assert seen[0] == seen[1]
