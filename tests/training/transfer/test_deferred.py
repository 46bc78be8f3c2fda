"""Small tensors to whoever asked for them, without waiting."""

from __future__ import annotations

import pytest
import torch

from ampwatch.training.transfer.deferred import Deferred
from tests.training.sensors.late import FakeDevice, Waits


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
def test_what_is_in_host_memory_is_handed_over_at_once(dtype: torch.dtype) -> None:
    """In order, as floats, without a host sync."""
    seen: list[list[float]] = []
    values = torch.tensor([[3, -7], [0, 250]], dtype=dtype)

    with Waits() as waits:
        Deferred().read(values, seen.append)

    assert seen == [[3.0, -7.0, 0.0, 250.0]]
    assert waits.count == 0


def test_a_scalar_that_requires_grad_is_one_number() -> None:
    """A loss may be handed over as it is."""
    seen: list[list[float]] = []
    Deferred().read(torch.tensor(0.5, requires_grad=True), seen.append)

    assert seen == [[0.5]]


def test_what_is_on_a_device_comes_when_it_has_arrived_and_in_order() -> None:
    """Nothing before its event has passed; each is what it was when it was asked for."""
    device = FakeDevice()
    seen: list[list[float]] = []
    deferred = Deferred(device)
    values = torch.zeros(2)
    for number in range(3):
        values.fill_(number)
        deferred.read(values, seen.append)
    deferred.poll()
    nothing = list(seen)
    device.done = 2
    deferred.poll()
    first = list(seen)
    device.done = 3
    deferred.poll()

    assert (nothing, first) == ([], [[0.0, 0.0], [1.0, 1.0]])
    assert seen == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    assert (len(deferred.flying), deferred.dropped) == (0, 0)


def test_what_there_is_no_room_for_is_dropped_and_counted() -> None:
    """The device is behind; nobody waits for it, and room comes back."""
    device = FakeDevice()
    seen: list[list[float]] = []
    deferred = Deferred(device, slots=2)
    for number in range(5):
        deferred.read(torch.tensor(float(number)), seen.append)
    device.done = 2
    deferred.poll()
    deferred.read(torch.tensor(9.0), seen.append)
    device.done = 3
    deferred.poll()

    assert seen == [[0.0], [1.0], [9.0]]
    assert (deferred.dropped, device.allocations) == (3, 1)


def test_nothing_is_copied_or_asked_while_a_graph_is_captured() -> None:
    """Both would end the capture."""
    device = FakeDevice()
    seen: list[list[float]] = []
    deferred = Deferred(device)
    deferred.read(torch.tensor(1.0), seen.append)
    device.done, device.captures = 1, True
    deferred.read(torch.tensor(2.0), seen.append)
    deferred.poll()
    while_captured = list(seen)
    device.captures = False
    deferred.poll()

    assert (while_captured, seen) == ([], [[1.0]])
    assert (device.recorded, deferred.dropped) == (1, 1)


def test_too_many_values_are_refused() -> None:
    """The error names both numbers."""
    with pytest.raises(ValueError, match="at most 4 values, got 5"):
        Deferred(width=4).read(torch.zeros(5), lambda _values: None)
