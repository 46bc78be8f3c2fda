"""Device values to the host, without waiting."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ampwatch.training.transfer import readback
from ampwatch.training.transfer.readback import Readback, is_plain_scalar
from tests.training.sensors.late import FakeDevice

either_way = pytest.mark.parametrize(
    "host_scalar", [readback.host_scalar, readback._host_scalar], ids=["as built", "Python"]
)


def _send(readback: Readback, value: float) -> bool:
    row = readback.open()
    if row is None:
        return False
    readback.put(row, 0, torch.tensor(value))
    readback.seal(row, value)
    return True


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.float64, 1 / 3),
        (torch.float32, 2.0**-149),
        (torch.float16, 65504.0),
        (torch.float16, 2.0**-24),
        (torch.bfloat16, -3.0e38),
        (torch.int32, -7),
        (torch.int64, 2**40),
        (torch.bool, True),
        (torch.float32, math.inf),
        (torch.float16, -math.inf),
    ],
)
@either_way
def test_a_scalar_is_read_as_item_reads_it(
    dtype: torch.dtype, value: float, host_scalar: Any
) -> None:
    """Reading memory gives what PyTorch's own ``item()`` gives."""
    tensor = torch.tensor(value, dtype=dtype)

    assert (host_scalar(tensor), type(host_scalar(tensor))) == (tensor.item(), type(tensor.item()))
    assert host_scalar(tensor.new_tensor([0, value])[1]) == tensor.item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@either_way
def test_nan_is_read_as_nan(dtype: torch.dtype, host_scalar: Any) -> None:
    """A NaN loss arrives as NaN."""
    assert math.isnan(host_scalar(torch.tensor(math.nan, dtype=dtype)))


@either_way
def test_an_unknown_dtype_is_refused_by_name(host_scalar: Any) -> None:
    """The error names what is expected and what was given."""
    with pytest.raises(TypeError, match=r"float or an int scalar, got torch\.complex64"):
        host_scalar(torch.tensor(1j))


def test_only_plain_dense_one_element_tensors_are_plain_scalars() -> None:
    """Tensors that hide their memory, or have more elements, are left alone."""

    class Sub(torch.Tensor):
        pass

    assert is_plain_scalar(torch.tensor(1.0))
    assert is_plain_scalar(torch.nn.Parameter(torch.ones(1, 1)))
    assert not is_plain_scalar(torch.ones(2))
    assert not is_plain_scalar(torch.ones(1).as_subclass(Sub))
    assert not is_plain_scalar(torch.ones(1).to_sparse())
    assert not is_plain_scalar(1.0)


def test_rows_arrive_in_order_and_only_when_the_device_has_got_there() -> None:
    """Nothing arrives before its event has passed, and nothing overtakes."""
    device = FakeDevice()
    readback = Readback(4, 1, device)
    for value in (1.0, 2.0, 3.0):
        _send(readback, value)
    nothing = list(readback.arrived())
    device.done = 2
    first = [(v[0], p) for v, p in readback.arrived()]
    device.done = 3
    rest = [(v[0], p) for v, p in readback.arrived()]

    assert (nothing, first, rest) == ([], [(1.0, 1.0), (2.0, 2.0)], [(3.0, 3.0)])


def test_a_full_readback_drops_the_newest_and_counts_it() -> None:
    """When the host falls behind nothing waits; what was under way still arrives."""
    device = FakeDevice()
    readback = Readback(2, 1, device)
    sent = [_send(readback, float(i)) for i in range(5)]
    device.done = 99

    assert sent == [True, True, False, False, False]
    assert readback.dropped == 3
    assert [v[0] for v, _ in readback.arrived()] == [0.0, 1.0]
    assert _send(readback, 9.0)


def test_a_row_holds_the_value_as_it_was_when_it_was_put() -> None:
    """A tensor that is changed afterwards does not change what was taken."""
    device = FakeDevice()
    readback = Readback(2, 1, device)
    found_inf = torch.tensor(1.0)
    row = readback.open()
    assert row is not None
    readback.put(row, 0, found_inf)
    found_inf.zero_()
    readback.seal(row, None)
    device.done = 1

    assert [v[0] for v, _ in readback.arrived()] == [1.0]


def test_pinned_memory_and_events_are_made_once() -> None:
    """Nothing grows with the number of iterations."""
    device = FakeDevice()
    readback = Readback(2, 3, device)
    for i in range(50):
        _send(readback, float(i))
        device.done = device.recorded
        list(readback.arrived())

    assert device.allocations == 1
    assert readback.in_flight == 0
