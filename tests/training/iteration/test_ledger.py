"""How iterations are put together, also when their values are late."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.amp.grad_scaler import OptState

from ampwatch.diagnosis.evidence.iteration import Attention, ScalerSettings, TensorRange
from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.training.hooks import events as on
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.iteration.ledger import MAX_FOUND_INF, ROW_WIDTH, Clock, IterationLedger
from ampwatch.training.transfer.readback import Readback, Row
from ampwatch.wire.records import Topic
from tests.training.bench import Bench, Heard
from tests.training.sensors.late import FakeDevice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration

SETTINGS = ScalerSettings(2.0, 0.5, 2000)


class ListJudge:
    """Keeps what arrives."""

    def __init__(self) -> None:
        self.iterations: list[Iteration] = []

    def deliver(self, *iterations: Iteration) -> None:
        self.iterations += iterations

    def deliver_alike(self, iterations: Sequence[Iteration]) -> None:
        self.iterations += iterations

    def attention(self) -> Attention:
        return Attention()


class NoSamples:
    """Measures nothing, but hands out the sample that the test has laid down."""

    def __init__(self) -> None:
        self.discarded: list[Any] = []
        self.next_sample: Any = None

    def seal(self) -> Any:
        sample, self.next_sample = self.next_sample, None
        return sample

    def take(self, sample: Any) -> Any:
        return sample.ranges

    def discard(self, sample: Any) -> None:
        self.discarded.append(sample)


class SeesOps(Sensor):
    """Adds to each iteration that closes what it has seen of its ops."""

    name = "ops"

    def __init__(self) -> None:
        self.seen: tuple[Any, Any] = (None, None)

    def iteration_closed(self, event: on.IterationClosed) -> None:
        event.iteration.census, event.iteration.window = self.seen


class LateSample:
    """A sample that arrives when the test says so."""

    def __init__(self) -> None:
        self.arrived = False
        self.topics = {Topic.GRADIENT}
        self.incomplete: set[Topic] = set()
        self.ranges = [TensorRange(Topic.GRADIENT, "w", "", "float32", ExponentHistogram(numel=1))]

    def has_arrived(self) -> bool:
        return self.arrived


class Watched:
    """A ledger on its own, with a scaler, a clock and a device that the test drives."""

    def __init__(self, device: FakeDevice | None = None, slots: int = 4) -> None:
        self.now_ns = 1_000
        self.judge = ListJudge()
        self.samples = NoSamples()
        self.ops = SeesOps()
        self.heard = Heard(
            on.IterationClosing, on.IterationClosed, on.IterationOpened, on.IterationArrived
        )
        self.readback = Readback(slots, ROW_WIDTH, device)
        self.scaler: Any = torch.amp.GradScaler("cpu")
        bench = Bench(scaler=self.scaler)
        self.bus = bench.bus
        self.ledger = IterationLedger(
            bus=bench.bus,
            iteration=bench.iteration,
            losses=bench.context.losses,
            readback=self.readback,
            registry=bench.context.registry,
            judge=self.judge,
            samples=self.samples,
            clock=Clock(lambda: self.now_ns, lambda: self.now_ns + 5),
        )
        # Nothing is placed: the test says what the scaler does.
        for sensor in (self.ledger, self.ops, self.heard):
            self.bus.add(sensor)
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        self._stepped: set[int] = set()

    @property
    def iterations(self) -> list[Iteration]:
        """All that can be delivered by now."""
        self.ledger.deliver_arrived()
        return self.judge.iterations

    def of(self, kind: type) -> list[Any]:
        """The events of a kind so far."""
        return [event for event in self.heard.events if isinstance(event, kind)]

    def scale_loss(self, outputs: object) -> None:
        """The user calls ``scaler.scale``."""
        self.bus.emit(on.Scaled(self.scaler, outputs, None))

    def step(self, number: int, *, called: bool = True, **options: Any) -> None:
        """The user calls ``scaler.step`` of the optimizer of this number."""
        made = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1, **options)
        optimizer = self._optimizers.setdefault(number, made)
        self._stepped.add(number)
        self.bus.emit(on.StepBegan(self.scaler, optimizer))
        if called:
            self.bus.emit(on.OptimizerStepped(optimizer, by_scaler=True, is_outermost=True))
        self.bus.emit(on.StepEnded(self.scaler, optimizer))

    def begin_update(self, found_inf: list[tuple[int, float]], scale: float = 8.0) -> None:
        """``scaler.update`` begins, with these verdicts; -1 stands for one that has not stepped."""
        states: dict[int, Any] = {}
        for number, value in found_inf:
            if number >= 0 and number not in self._stepped:
                self.step(number)
            key = id(self._optimizers[number]) if number >= 0 else number
            stage = OptState.STEPPED if number >= 0 else OptState.UNSCALED
            state = states.setdefault(key, {"stage": stage, "found_inf_per_device": {}})
            devices = state["found_inf_per_device"]
            devices[len(devices)] = torch.tensor(value)
        self.scaler._per_optimizer_states = states
        self.scaler._scale = torch.tensor(2 * scale)
        self.scaler._growth_tracker = torch.tensor(3, dtype=torch.int32)
        self.bus.emit(on.Updating(self.scaler))

    def update(self, found_inf: list[tuple[int, float]], scale: float = 8.0) -> None:
        """The user calls ``scaler.update``."""
        self.begin_update(found_inf, scale)
        self.scaler._scale = torch.tensor(scale)
        self.bus.emit(on.Updated(self.scaler, is_given=False))
        self._stepped.clear()
        assert not self.ledger.guard.off


def test_an_iteration_has_its_time_duration_scale_and_tracker() -> None:
    """The first one has no duration; the second one has the time between the two."""
    watched = Watched()
    watched.update([(0, 0.0)])
    watched.now_ns += 2_000_000_000
    watched.update([(0, 1.0)], scale=4.0)
    first, second = watched.iterations

    assert math.isnan(first.duration_s)
    assert (second.step, second.duration_s, second.time_ns) == (1, 2.0, 2_000_001_005)
    assert (second.scale_before, second.loss_scale) == (8.0, 4.0)
    assert (second.growth_tracker, second.scaler) == (3, SETTINGS)
    assert (first.found_inf, second.found_inf) == ({0: False}, {0: True})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_the_loss_is_the_mean_of_what_was_handed_over(dtype: torch.dtype) -> None:
    """Micro-batches, lists and nested tuples of losses; of any float dtype."""
    watched = Watched()
    watched.scale_loss(torch.tensor(1.0, dtype=dtype))
    watched.scale_loss([torch.tensor(2.0, dtype=dtype), (torch.tensor([6.0], dtype=dtype),)])
    watched.update([])

    assert (watched.iterations[0].loss, watched.iterations[0].num_losses) == (3.0, 3)


def test_what_is_no_loss_is_left_alone() -> None:
    """Vectors, integers, ``None`` and iterators: an iterator can be consumed only once."""
    watched = Watched()
    iterator = iter([torch.tensor(1.0)])
    for outputs in (torch.ones(3), torch.tensor(1), None, iterator, torch.empty(0)):
        watched.scale_loss(outputs)
    watched.update([])

    assert watched.iterations[0].num_losses == 0
    assert math.isnan(watched.iterations[0].loss)
    assert next(iterator).item() == 1.0


def test_one_nonfinite_loss_of_many_makes_the_mean_nonfinite() -> None:
    """A non-finite loss cannot hide among the others."""
    watched = Watched()
    for value in (1.0, math.inf, -math.inf, 2.0):
        watched.scale_loss(torch.tensor(value))
    watched.update([])

    assert not math.isfinite(watched.iterations[0].loss)


def test_the_verdicts_of_several_devices_are_joined() -> None:
    """One device with a non-finite gradient is enough."""
    watched = Watched()
    watched.update([(0, 0.0), (0, 1.0), (1, 0.0), (1, 0.0), (-1, 1.0)])

    assert watched.iterations[0].found_inf == {0: True, 1: False}
    assert watched.iterations[0].other_found_inf is True


def test_an_iteration_with_more_verdicts_than_columns_is_dropped_and_counted() -> None:
    """Half a truth would be a wrong one: rows have a fixed width."""
    watched = Watched()
    watched.update([(0, 0.0)] * MAX_FOUND_INF + [(1, 1.0)])
    watched.update([(0, 0.0)] * MAX_FOUND_INF)

    assert [i.step for i in watched.iterations] == [1]
    assert watched.readback.dropped == 1


def test_without_a_fused_optimizer_the_verdict_is_announced_at_once() -> None:
    """Whether ``optimizer.step`` was called tells the host, before the values arrive."""
    watched = Watched(FakeDevice())
    watched.step(0)
    watched.step(1, called=False)
    watched.update([(0, 0.0), (1, 1.0)])

    assert watched.iterations == []
    assert watched.ledger.verdict == (0, (1,))


def test_with_a_fused_optimizer_nothing_is_announced_too_early() -> None:
    """A fused optimizer is called for skipped steps as well; the host does not know."""
    watched = Watched(FakeDevice())
    watched.step(0, fused=True)
    watched.update([(0, 1.0)])

    assert watched.ledger.verdict == (-1, ())


def test_an_iteration_that_finds_no_row_is_dropped_and_the_next_ones_keep_their_numbers() -> None:
    """A device that is far behind costs observations, not order."""
    device = FakeDevice()
    watched = Watched(device, slots=1)
    for _ in range(3):
        watched.update([(0, 0.0)])
    device.done = 99
    watched.ledger.deliver_arrived()
    watched.update([(0, 0.0)])

    assert watched.readback.dropped == 2
    assert [i.step for i in watched.iterations] == [0, 3]


def test_an_update_that_raised_does_not_lose_the_row() -> None:
    """The user caught an error of ``update`` and goes on; nothing runs out."""
    watched = Watched(slots=2)
    for _ in range(5):
        watched.begin_update([(0, 1.0)])
    watched.update([(0, 0.0)])

    assert watched.readback.dropped == 0
    assert watched.iterations[0].found_inf == {0: False}


def test_an_interrupt_while_a_row_is_sealed_does_not_send_it_twice() -> None:
    """The user catches Ctrl-C and goes on, and the ledger as well."""
    watched = Watched()
    seal = watched.readback.seal

    def interrupted(row: Row, payload: object) -> bool:
        seal(row, payload)
        watched.readback.seal = seal  # type: ignore[method-assign]
        raise KeyboardInterrupt

    watched.readback.seal = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        watched.update([(0, 0.0)])
    for _ in range(8):
        watched.update([(0, 0.0)])

    assert len(watched.iterations) == 9
    assert watched.readback.dropped == 0
    assert not watched.ledger.guard.off


def test_iterations_without_news_are_judged_together() -> None:
    """Half a readback full, or a quarter of a second: until then nobody is disturbed."""
    watched = Watched(slots=64)
    counts = []
    for _ in range(40):
        watched.now_ns += 1_000_000
        watched.update([(0, 0.0)])
        counts.append(len(watched.judge.iterations))
    watched.now_ns += 250_000_000
    watched.update([(0, 0.0)])

    assert counts == [0] * 31 + [32] * 9
    assert len(watched.judge.iterations) == 41


@pytest.mark.parametrize("news", ["a skipped step", "a loss that is not finite"])
def test_news_does_not_wait(news: str) -> None:
    """The iteration that went wrong is judged when it ends, with those before it."""
    watched = Watched(slots=64)
    watched.update([(0, 0.0)])
    before = len(watched.judge.iterations)
    if news == "a skipped step":
        watched.update([(0, 1.0)])
    else:
        watched.scale_loss(torch.tensor(math.nan))
        watched.update([(0, 0.0)])

    assert (before, len(watched.judge.iterations)) == (0, 2)


def test_an_iteration_waits_for_what_was_measured_in_it() -> None:
    """And those after it wait as well, so that they come in order."""
    watched = Watched()
    sample = watched.samples.next_sample = LateSample()
    watched.update([(0, 0.0)])
    watched.update([(0, 0.0)])
    early = list(watched.iterations)
    sample.arrived = True

    first, second = watched.iterations
    assert early == []
    assert (first.topics, list(first.ranges)) == (frozenset({Topic.GRADIENT}), sample.ranges)
    assert (second.topics, list(second.ranges)) == (frozenset(), [])


def test_what_was_measured_in_a_dropped_iteration_is_let_go() -> None:
    """Nobody will ask for it."""
    watched = Watched(slots=2)
    watched.samples.next_sample = LateSample()
    watched.update([(0, 0.0)])
    watched.update([(0, 0.0)])
    unasked = watched.samples.next_sample = LateSample()
    watched.update([(0, 0.0)])

    assert watched.samples.discarded == [unasked]


def test_sensors_are_told_of_the_end_of_each_iteration_and_of_what_is_not_finite() -> None:
    """At the end what the host knows, and an alarm once the iteration is delivered."""
    watched = Watched()
    watched.update([(0, 0.0)])
    watched.now_ns += 3_000_000_000
    watched.update([(0, 1.0)])
    watched.scale_loss(torch.tensor(math.inf))
    watched.update([(0, 0.0)])
    delivered = watched.iterations

    assert [event.has_nonfinite for event in watched.of(on.IterationClosing)] == [False, True, True]
    assert watched.of(on.IterationOpened)[1].duration_s == 3.0
    assert [event.is_alarming for event in watched.of(on.IterationArrived)] == [False, True, True]
    watched.update([(0, 0.0)])
    assert watched.iterations
    assert [event.ends_alarm for event in watched.of(on.IterationArrived)] == [False] * 3 + [True]
    assert [i.loss_dtype for i in delivered] == ["", "", "float32", ""]


def test_what_was_seen_of_the_ops_of_an_iteration_goes_with_it() -> None:
    """Asked for when it ends, before the next one is opened; delivered in its turn."""
    device = FakeDevice()
    watched = Watched(device)
    census, window = object(), object()
    watched.ops.seen = census, window
    watched.update([(0, 0.0)])
    watched.now_ns += 2_000_000_000
    watched.ops.seen = None, None
    watched.update([(0, 0.0)])
    early = list(watched.iterations)
    device.done = 2

    assert early == []
    assert [(i.census, i.window) for i in watched.iterations] == [(census, window), (None, None)]
    told = [
        (type(event), event.step if isinstance(event, on.IterationOpened) else event.iteration.step)
        for event in watched.heard.events
        if isinstance(event, (on.IterationClosed, on.IterationOpened))
    ]
    assert told == [
        (on.IterationClosed, 0),
        (on.IterationOpened, 1),
        (on.IterationClosed, 1),
        (on.IterationOpened, 2),
    ]
    first, second = watched.of(on.IterationClosed)
    assert math.isnan(first.iteration.duration_s)
    assert second.iteration.duration_s == 2.0
