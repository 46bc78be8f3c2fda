"""The smallest and largest elements arrive as they were, and nothing waits for them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.autograd.profiler import profile

from ampwatch.training.devices import Link
from ampwatch.training.transfer.extremes import MAX_STREAMS, ROWS, Extremes, Measures
from tests.training.sensors.late import FakeDevice, Waits

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def _landed(measures: Measures, device: FakeDevice) -> bool:
    flight = measures.send()
    assert not flight.has_arrived()
    device.done = device.recorded
    assert flight.has_arrived()
    return flight.land()


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_arrives_is_what_the_tensor_held_when_it_was_measured(dtype: torch.dtype) -> None:
    """Exactly, in each dtype, though the tensor has changed since."""
    generator = torch.Generator().manual_seed(3)
    device = FakeDevice()
    measures = Measures(device)
    rows, expected = [], []
    for shape in [(), (5,), (3, 4), (2, 3, 7)]:
        tensor = (torch.randn(shape, generator=generator) * 100).to(dtype)
        for view in (tensor, tensor.t() if tensor.ndim == 2 else tensor[..., None]):
            rows.append(measures.measure(view, least=True))
            numbers = view.double().flatten().tolist()
            expected.append((min(numbers), max(numbers), min(map(abs, numbers))))
        tensor.zero_()

    assert _landed(measures, device)
    assert [(r.low, r.high, r.least) for r in rows if r is not None] == expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_element_that_is_not_finite_is_enough(dtype: torch.dtype, bad: float) -> None:
    """An infinity is at its end of the range; NaN is at both, and hides infinities."""
    device = FakeDevice()
    measures = Measures(device)
    tensor = torch.arange(1000.0).to(dtype)
    tensor[517] = bad
    row = measures.measure(tensor)
    assert row is not None
    assert not _landed(measures, device)

    assert not row.is_finite
    assert math.isnan(row.low) == math.isnan(row.high) == math.isnan(bad)
    assert math.isnan(bad) or bad in (row.low, row.high)


def test_nothing_waits_and_nothing_blocks() -> None:
    """No scalar is read, and every copy is asynchronous, while measuring and sending."""
    measures = Measures(FakeDevice())
    with Waits() as waits:
        measures.measure(torch.ones(4), least=True)
        measures.send()

    assert waits.ops > 2
    assert waits.count == 0


def test_rows_of_the_next_sending_do_not_change_those_on_their_way() -> None:
    """The device memory is used again at once, the landing place once it was read."""
    device = FakeDevice()
    measures = Measures(device)
    rows: list[Extremes | None] = []
    flights = []
    for number in range(3):
        rows.append(measures.measure(torch.full((4,), float(number))))
        flights.append(measures.send())
    device.done = device.recorded
    assert all(flight.has_arrived() and flight.land() for flight in flights)

    assert [row.high for row in rows if row is not None] == [0.0, 1.0, 2.0]
    allocated = device.allocations
    for _ in range(10):
        measures.measure(torch.ones(4))
        _landed(measures, device)
    assert device.allocations == allocated


def test_more_rows_than_were_allocated_at_a_time_arrive_in_their_order() -> None:
    """Memory grows as it is needed."""
    device = FakeDevice()
    measures = Measures(device)
    rows = [measures.measure(torch.tensor([float(i)])) for i in range(2 * ROWS + 3)]

    assert _landed(measures, device)
    assert [row.high for row in rows if row is not None] == [float(i) for i in range(2 * ROWS + 3)]


def test_there_is_an_end_to_the_rows() -> None:
    """Tensors without room are not measured; after the sending there is room again."""
    device = FakeDevice()
    measures = Measures(device, most=2)

    assert [measures.measure(torch.ones(1)) is None for _ in range(3)] == [False, False, True]
    _landed(measures, device)
    assert measures.measure(torch.ones(1)) is not None


def test_nothing_is_measured_while_a_graph_is_captured() -> None:
    """The kernel would become a part of the user's graph."""
    device = FakeDevice()
    device.captures = True

    with Waits() as waits:
        assert Measures(device).measure(torch.ones(1)) is None
    assert waits.ops <= 1


def test_what_lies_in_host_memory_is_known_at_once() -> None:
    """Without an op that would be a read of a device scalar."""
    with Waits() as waits:
        row = Measures(Link()).measure(torch.tensor([3.0, -0.5, 2.0]), least=True)

    assert row is not None
    assert (row.low, row.high, row.least) == (-0.5, 3.0, 0.5)
    assert waits.count == 0


def test_each_stream_has_rows_of_its_own_and_sends_them_itself() -> None:
    """Rows of one stream are not copied by another one that may be ahead of it."""

    class Streams(FakeDevice):
        def __init__(self) -> None:
            super().__init__()
            self.current: Any = 0
            self.copied_on: list[Any] = []

        def stream(self, device: torch.device) -> Any:
            return self.current

        def using(self, device: torch.device, stream: Any) -> Any:
            self.copied_on.append(stream)
            return super().using(device, None)

    device = Streams()
    measures = Measures(device)
    rows = []
    for number in (0, 1, 0, 2):
        device.current = number
        rows.append(measures.measure(torch.tensor([float(number)])))

    assert _landed(measures, device)
    assert device.copied_on == [0, 1, 2]
    assert [row.high for row in rows if row is not None] == [0.0, 1.0, 0.0, 2.0]

    for number in range(MAX_STREAMS + 4):
        device.current = number
        row = measures.measure(torch.ones(1))
        assert (row is None) == (number >= MAX_STREAMS)


@pytest.mark.parametrize(
    "view",
    [
        torch.randn(1, 1, 64, 64).expand(16, 32, 64, 64),
        torch.randn(1024, 1024).t(),
        torch.randn(64, 64, 3 * 64).chunk(3, -1)[1],
        torch.ones(()).expand(1024, 1024),
        torch.randn(8, 16, 32, 32).to(memory_format=torch.channels_last),
    ],
    ids=["mask", "transposed", "chunk", "scalar", "channels_last"],
)
@pytest.mark.parametrize("is_host", [False, True])
def test_a_view_is_measured_without_a_copy(view: torch.Tensor, *, is_host: bool) -> None:
    """PyTorch's own profiler counts what is allocated meanwhile; a copy would be of its whole size."""
    measures = Measures(Link() if is_host else FakeDevice())
    measures.measure(torch.ones(3))  # the rows themselves
    with profile(profile_memory=True) as recorded:
        row = measures.measure(view)
    events: Any = recorded.kineto_results
    taken = [e.nbytes() for e in events.events() if e.name() == "[memory]"]
    if not is_host:
        measures.send().land()

    assert row is not None
    assert (row.low, row.high) == (view.min().item(), view.max().item())
    assert max(taken, default=0) < view.numel() * view.element_size() // 100
