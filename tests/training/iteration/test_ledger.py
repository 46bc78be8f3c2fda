"""How iterations are put together, also when their values are late."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ampwatch.diagnosis.evidence.iteration import ScalerSettings, TensorRange
from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.training.iteration.ledger import MAX_FOUND_INF, ROW_WIDTH, Clock, IterationLedger
from ampwatch.training.model.optimizers import OptimizerRegistry
from ampwatch.training.transfer.readback import Readback
from ampwatch.wire.records import Topic
from tests.training.sensors.late import FakeDevice

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence.iteration import Iteration

SETTINGS = ScalerSettings(2.0, 0.5, 2000)


class ListSink:
    """Keeps what arrives."""

    def __init__(self) -> None:
        self.iterations: list[Iteration] = []

    def deliver(self, iteration: Iteration) -> None:
        self.iterations.append(iteration)


class NoMeasurements:
    """Measures nothing and keeps what it is told."""

    def __init__(self) -> None:
        self.closings: list[bool] = []
        self.durations: list[float] = []
        self.alarms = self.calms = 0
        self.discarded: list[Any] = []
        self.next_sample: Any = None

    def closing(self, *, nonfinite: bool) -> None:
        self.closings.append(nonfinite)

    def seal(self) -> Any:
        sample, self.next_sample = self.next_sample, None
        return sample

    def opened(self, duration_s: float) -> None:
        self.durations.append(duration_s)

    def take(self, sample: Any) -> Any:
        return sample.ranges

    def discard(self, sample: Any) -> None:
        self.discarded.append(sample)

    def alarm(self) -> None:
        self.alarms += 1

    def calm(self) -> None:
        self.calms += 1


class NoOps:
    """Counts no ops, and keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.seen: tuple[Any, Any] = (None, None)

    def closed(self, step: int, duration_s: float) -> tuple[Any, Any]:
        self.told.append((step, duration_s))
        return self.seen

    def opened(self) -> None:
        self.told.append("opened")


class LateSample:
    """A sample that arrives when the test says so."""

    def __init__(self) -> None:
        self.arrived = False
        self.topics = {Topic.GRADIENT}
        self.ranges = [TensorRange(Topic.GRADIENT, "w", "", "float32", ExponentHistogram(numel=1))]

    def has_arrived(self) -> bool:
        return self.arrived


class Bench:
    """A ledger on its own, with a clock and a device that the test drives."""

    def __init__(self, device: FakeDevice | None = None, slots: int = 4) -> None:
        self.now_ns = 1_000
        self.sink = ListSink()
        self.measurements = NoMeasurements()
        self.ops = NoOps()
        self.readback = Readback(slots, ROW_WIDTH, device)
        self.ledger = IterationLedger(
            self.readback,
            OptimizerRegistry([], []),
            self.sink,
            self.measurements,
            self.ops,
            lambda _optimizer: False,
            Clock(lambda: self.now_ns, lambda: self.now_ns + 5),
        )

    @property
    def iterations(self) -> list[Iteration]:
        """All that can be delivered by now."""
        self.ledger.deliver_arrived()
        return self.sink.iterations

    def update(self, found_inf: list[tuple[int, float]], scale: float = 8.0) -> None:
        """What ``scaler.update`` makes the sensor say."""
        verdicts = [(i, torch.tensor(v)) for i, v in found_inf]
        self.ledger.take_verdicts(torch.tensor(2 * scale), verdicts)
        self.ledger.close_scaled(
            torch.tensor(scale), torch.tensor(3, dtype=torch.int32), SETTINGS, scale_given=False
        )


def _optimizer(**options: Any) -> torch.optim.SGD:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1, **options)


def test_an_iteration_has_its_time_duration_scale_and_tracker() -> None:
    """The first one has no duration; the second one has the time between the two."""
    bench = Bench()
    bench.update([(0, 0.0)])
    bench.now_ns += 2_000_000_000
    bench.update([(0, 1.0)], scale=4.0)
    first, second = bench.iterations

    assert math.isnan(first.duration_s)
    assert (second.step, second.duration_s, second.time_ns) == (1, 2.0, 2_000_001_005)
    assert (second.scale_before, second.loss_scale) == (8.0, 4.0)
    assert (second.growth_tracker, second.scaler) == (3, SETTINGS)
    assert (first.found_inf, second.found_inf) == ({0: False}, {0: True})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_the_loss_is_the_mean_of_what_was_handed_over(dtype: torch.dtype) -> None:
    """Micro-batches, lists and nested tuples of losses; of any float dtype."""
    bench = Bench()
    bench.ledger.losses.add(torch.tensor(1.0, dtype=dtype))
    bench.ledger.losses.add([torch.tensor(2.0, dtype=dtype), (torch.tensor([6.0], dtype=dtype),)])
    bench.update([])

    assert (bench.iterations[0].loss, bench.iterations[0].num_losses) == (3.0, 3)


def test_what_is_no_loss_is_left_alone() -> None:
    """Vectors, integers, ``None`` and iterators: an iterator can be consumed only once."""
    bench = Bench()
    iterator = iter([torch.tensor(1.0)])
    for outputs in (torch.ones(3), torch.tensor(1), None, iterator, torch.empty(0)):
        bench.ledger.losses.add(outputs)
    bench.update([])

    assert bench.iterations[0].num_losses == 0
    assert math.isnan(bench.iterations[0].loss)
    assert next(iterator).item() == 1.0


def test_one_nonfinite_loss_of_many_makes_the_mean_nonfinite() -> None:
    """It cannot hide among the others."""
    bench = Bench()
    for value in (1.0, math.inf, -math.inf, 2.0):
        bench.ledger.losses.add(torch.tensor(value))
    bench.update([])

    assert not math.isfinite(bench.iterations[0].loss)


def test_losses_do_not_leak_into_the_next_iteration() -> None:
    """Each iteration starts empty."""
    bench = Bench()
    bench.ledger.losses.add(torch.tensor(4.0))
    bench.update([])
    bench.update([])

    assert [i.num_losses for i in bench.iterations] == [1, 0]


def test_the_verdicts_of_several_devices_are_joined() -> None:
    """One device with a non-finite gradient is enough."""
    bench = Bench()
    bench.update([(0, 0.0), (0, 1.0), (1, 0.0), (1, 0.0), (-1, 1.0)])

    assert bench.iterations[0].found_inf == {0: True, 1: False}
    assert bench.iterations[0].other_found_inf is True


def test_an_iteration_with_more_verdicts_than_columns_is_dropped_and_counted() -> None:
    """Half a truth would be a wrong one: rows have a fixed width."""
    bench = Bench()
    bench.update([(0, 0.0)] * MAX_FOUND_INF + [(1, 1.0)])
    bench.update([(0, 0.0)] * MAX_FOUND_INF)

    assert [i.step for i in bench.iterations] == [1]
    assert bench.readback.dropped == 1


def test_late_values_are_delivered_later_and_in_order() -> None:
    """Nothing is delivered before the device got there."""
    device = FakeDevice()
    bench = Bench(device)
    bench.update([(0, 0.0)], scale=8.0)
    bench.update([(0, 1.0)], scale=4.0)
    early = list(bench.iterations)
    device.done = 2

    assert early == []
    assert [(i.step, i.loss_scale) for i in bench.iterations] == [(0, 8.0), (1, 4.0)]


def test_without_a_fused_optimizer_the_verdict_is_announced_at_once() -> None:
    """Whether ``optimizer.step`` was called tells the host, before the values arrive."""
    bench = Bench(FakeDevice())
    applied, skipped = _optimizer(), _optimizer()
    for optimizer in (applied, skipped):
        bench.ledger.begin_scaled_step(optimizer)
        if optimizer is applied:
            bench.ledger.optimizer_stepped(optimizer, scaler_enabled=True)
        bench.ledger.end_scaled_step()
    bench.update([(0, 0.0), (1, 1.0)])

    assert bench.iterations == []
    assert bench.ledger.verdict == (0, (1,))


def test_with_a_fused_optimizer_nothing_is_announced_too_early() -> None:
    """A fused optimizer is called for skipped steps as well; the host does not know."""
    bench = Bench(FakeDevice())
    fused = _optimizer(fused=True)
    bench.ledger.begin_scaled_step(fused)
    bench.ledger.optimizer_stepped(fused, scaler_enabled=True)
    bench.ledger.end_scaled_step()
    bench.update([(0, 1.0)])

    assert bench.ledger.verdict == (-1, ())


def test_an_iteration_that_finds_no_row_is_dropped_and_the_next_ones_keep_their_numbers() -> None:
    """A device that is far behind costs observations, not order."""
    device = FakeDevice()
    bench = Bench(device, slots=1)
    for _ in range(3):
        bench.update([(0, 0.0)])
    device.done = 99
    bench.ledger.deliver_arrived()
    bench.update([(0, 0.0)])

    assert bench.readback.dropped == 2
    assert [i.step for i in bench.iterations] == [0, 3]


def test_an_update_that_raised_does_not_lose_the_row() -> None:
    """The user caught an error of ``update`` and goes on; nothing runs out."""
    bench = Bench(slots=2)
    for _ in range(5):
        bench.ledger.take_verdicts(torch.tensor(8.0), [(0, torch.tensor(1.0))])
    bench.update([(0, 0.0)])

    assert bench.readback.dropped == 0
    assert bench.iterations[0].found_inf == {0: False}


def test_iterations_without_news_are_judged_together() -> None:
    """Half a readback full, or a quarter of a second: until then nobody is disturbed."""
    bench = Bench(slots=64)
    counts = []
    for _ in range(40):
        bench.now_ns += 1_000_000
        bench.update([(0, 0.0)])
        counts.append(len(bench.sink.iterations))
    bench.now_ns += 250_000_000
    bench.update([(0, 0.0)])

    assert counts == [0] * 31 + [32] * 9
    assert len(bench.sink.iterations) == 41


@pytest.mark.parametrize("news", ["a skipped step", "a loss that is not finite"])
def test_news_does_not_wait(news: str) -> None:
    """The iteration that went wrong is judged when it ends, with those before it."""
    bench = Bench(slots=64)
    bench.update([(0, 0.0)])
    before = len(bench.sink.iterations)
    if news == "a skipped step":
        bench.update([(0, 1.0)])
    else:
        bench.ledger.losses.add(torch.tensor(math.nan))
        bench.update([(0, 0.0)])

    assert (before, len(bench.sink.iterations)) == (0, 2)


def test_an_iteration_waits_for_what_was_measured_in_it() -> None:
    """And those after it wait as well, so that they come in order."""
    bench = Bench()
    sample = bench.measurements.next_sample = LateSample()
    bench.update([(0, 0.0)])
    bench.update([(0, 0.0)])
    early = list(bench.iterations)
    sample.arrived = True

    first, second = bench.iterations
    assert early == []
    assert (first.topics, list(first.ranges)) == (frozenset({Topic.GRADIENT}), sample.ranges)
    assert (second.topics, list(second.ranges)) == (frozenset(), [])


def test_what_was_measured_in_a_dropped_iteration_is_let_go() -> None:
    """Nobody will ask for it."""
    bench = Bench(slots=2)
    bench.measurements.next_sample = LateSample()
    bench.update([(0, 0.0)])
    bench.update([(0, 0.0)])
    unasked = bench.measurements.next_sample = LateSample()
    bench.update([(0, 0.0)])

    assert bench.measurements.discarded == [unasked]


def test_measurements_are_told_of_the_end_of_each_iteration_and_of_what_is_not_finite() -> None:
    """At the end what the host knows, and an alarm once the iteration is delivered."""
    bench = Bench()
    bench.update([(0, 0.0)])
    bench.now_ns += 3_000_000_000
    bench.update([(0, 1.0)])
    bench.ledger.losses.add(torch.tensor(math.inf))
    bench.update([(0, 0.0)])
    delivered = bench.iterations

    assert bench.measurements.closings == [False, True, True]
    assert bench.measurements.durations[1] == 3.0
    assert bench.measurements.alarms == 2
    bench.update([(0, 0.0)])
    assert bench.iterations
    assert bench.measurements.calms == 1
    assert [i.loss_dtype for i in delivered] == ["", "", "float32", ""]


def test_what_was_seen_of_the_ops_of_an_iteration_goes_with_it() -> None:
    """Asked for when it ends, before the next one is opened; delivered in its turn."""
    device = FakeDevice()
    bench = Bench(device)
    census, window = object(), object()
    bench.ops.seen = census, window
    bench.update([(0, 0.0)])
    bench.now_ns += 2_000_000_000
    bench.ops.seen = None, None
    bench.update([(0, 0.0)])
    early = list(bench.iterations)
    device.done = 2

    assert early == []
    assert [(i.census, i.window) for i in bench.iterations] == [(census, window), (None, None)]
    assert bench.ops.told[1:] == ["opened", (1, 2.0), "opened"]
    assert bench.ops.told[0][0] == 0
    assert math.isnan(bench.ops.told[0][1])
