"""Measurements on the host, and on a device that the test drives."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any
from weakref import getweakrefs

import pytest
import torch

from ampwatch.numerics.blocks import BLOCK_SIZES
from ampwatch.training.kernels.eager import EagerKernel
from ampwatch.training.kernels.native import load
from ampwatch.training.transfer.measuring import BLOCKS_APART_NS, SLABS, Item, Measuring
from ampwatch.training.transfer.slabs import How
from ampwatch.wire.records import Topic
from tests.numerics.block_oracle import counted
from tests.numerics.oracle import histogram_of

if TYPE_CHECKING:
    from collections.abc import Sequence


class FakeEvent:
    """Has passed when its link says so."""

    def __init__(self, link: FakeLink) -> None:
        self.link = link

    def record(self, _stream: Any) -> None:
        self.link.log.append("record")

    def query(self) -> bool:
        return self.link.arrived

    def elapsed_time(self, _end: Any) -> float:
        return self.link.elapsed_ms


class FakeLink:
    """Pinned memory, events and streams of a device that is played in host memory."""

    def __init__(self, *, is_host: bool = False) -> None:
        self.is_host = lambda _device: is_host
        self.arrived = False
        self.elapsed_ms = 0.25
        self.may = True
        self.log: list[str] = []

    def landing_place(self, numel: int) -> torch.Tensor:
        self.log.append("pin")
        return torch.zeros(numel)

    def make_event(self, _device: torch.device) -> FakeEvent:
        return FakeEvent(self)

    make_timer = make_event

    def may_ask(self, _devices: Sequence[torch.device]) -> bool:
        return self.may

    def stream(self, _device: torch.device) -> None:
        return None


def named(*values: Sequence[float], dtype: torch.dtype = torch.float32) -> list[Item]:
    return [
        Item(f"m{n}.weight", f"m{n}", torch.tensor(v, dtype=dtype)) for n, v in enumerate(values)
    ]


def host() -> Measuring:
    return Measuring(lambda _device: EagerKernel(), 8)


def taken(measuring: Measuring) -> list[Any]:
    sample = measuring.seal()
    assert sample is not None
    assert sample.has_arrived()
    return list(measuring.take(sample))


def test_each_tensor_is_named_with_its_histogram() -> None:
    """On the host at once."""
    measuring = host()
    values = [[1.0, 2.0, 0.0], [float("nan"), float("inf")], [65504.0]]
    measuring.measure(Topic.GRADIENT, named(*values), How(scaled=True))

    for r, v in zip(taken(measuring), values, strict=True):
        assert r.histogram == histogram_of(v)
        assert (r.topic, r.dtype, r.scaled, r.module) == (
            Topic.GRADIENT,
            "float32",
            True,
            r.name.removesuffix(".weight"),
        )


def test_a_list_longer_than_the_scratch_memory_is_measured_in_parts() -> None:
    """In order, and none is lost."""
    measuring = host()
    measuring.measure(Topic.WEIGHT, named(*([float(n)] for n in range(1, 400))))

    assert [r.histogram.amax for r in taken(measuring)] == [float(n) for n in range(1, 400)]


def test_a_subsample_keeps_the_extremes_of_all() -> None:
    """The bins hold so many elements at most, amax and infinities are exact."""
    values = torch.ones(100_000)
    values[77_777] = 1000.0
    values[99_999] = float("inf")
    measuring = host()
    measuring.measure(Topic.ACTIVATION, [Item("m", "m", values)], How(most=16384))

    histogram = taken(measuring)[0].histogram
    assert histogram.is_subsample
    assert histogram.binned <= 16384
    assert (histogram.amax, histogram.infs, histogram.numel) == (1000.0, 1, 100_000)


def test_what_cannot_be_measured_is_counted_and_left_out() -> None:
    """The rest is measured."""
    measuring = host()
    items = [
        Item("i", "", torch.ones(3, dtype=torch.int32)),
        Item("c", "", torch.ones(3, dtype=torch.complex64)),
        Item("f", "", torch.ones(3)),
    ]
    measuring.measure(Topic.WEIGHT, items)

    assert [r.name for r in taken(measuring)] == ["f"]
    assert measuring.refused == 2


def test_nothing_measured_is_no_sample_but_an_empty_list_is() -> None:
    """The topic was measured."""
    measuring = host()
    nothing = measuring.seal()
    measuring.measure(Topic.GRADIENT, [])

    assert nothing is None
    sample = measuring.seal()
    assert sample is not None
    assert sample.topics == {Topic.GRADIENT}


def test_without_a_kernel_nothing_is_measured_and_a_sentence_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Compilers and drivers raise what they like: one warning, and training goes on."""

    def kernel_of(_device: torch.device) -> Any:
        msg = "Failed to find C compiler. Please specify via CC environment variable\nmore"
        raise RuntimeError(msg)

    measuring = Measuring(kernel_of, 8)
    for _ in range(3):
        measuring.measure(Topic.WEIGHT, named([1.0]))

    assert taken(measuring) == []
    assert measuring.dropped == 0
    (why,) = measuring.not_measured.values()
    assert "not measured on cpu: Failed to find C compiler. Please specify" in why
    assert [record.getMessage() for record in caplog.records] == [why]


def test_a_device_without_memory_to_spare_loses_a_sample_and_no_more() -> None:
    """What is left is the training's; the next sample may fit."""

    class Full(EagerKernel):
        is_full = True

        def measure(self, pieces: Any, rows: Any, **more: Any) -> None:
            if self.is_full:
                raise torch.OutOfMemoryError
            super().measure(pieces, rows, **more)

    kernel = Full()
    measuring = Measuring(lambda _device: kernel, 8)
    measuring.measure(Topic.WEIGHT, named([1.0]))
    kernel.is_full = False
    measuring.measure(Topic.WEIGHT, named([2.0]))

    assert [r.histogram.amax for r in taken(measuring)] == [2.0]
    assert measuring.dropped == 1


def test_tensors_of_one_name_and_several_dtypes_stay_apart() -> None:
    """A module may return tensors of both."""
    measuring = host()
    items = [Item("m", "m", torch.ones(2).half()), Item("m", "m", torch.full((3,), 1e6))]
    measuring.measure(Topic.ACTIVATION, items)

    assert [(r.dtype, r.histogram.amax) for r in taken(measuring)] == [
        ("float16", 1.0),
        ("float32", 1e6),
    ]


def test_another_default_device_does_no_harm() -> None:
    """Memory that is read by its address has to be where it is read."""
    items = named([1.0, 2.0, 0.0], [4.0])
    native = load()
    kernels = [EagerKernel(), *([native] if native else [])]
    for kernel in kernels:
        measuring = Measuring(lambda _device, kernel=kernel: kernel, 8)
        with torch.device("meta"):
            measuring.measure(Topic.GRADIENT, items)

        assert [r.histogram.amax for r in taken(measuring)] == [2.0, 4.0]


class Device:
    """Measuring as on a device: the pieces lie on the host, but only the slabs may be used."""

    def __init__(self, rows: int = 8) -> None:
        self.link: Any = FakeLink()
        self.measuring = Measuring(lambda _device: EagerKernel(), rows, self.link)

    def sample(self, *values: Sequence[float], how: How | None = None) -> Any:
        self.measuring.measure(Topic.GRADIENT, named(*values), how or How())
        return self.measuring.seal()


def test_a_sample_of_a_device_is_read_once_its_event_has_passed() -> None:
    """The sample is not read before, and never by waiting."""
    device = Device()
    sample = device.sample([1.0, 4.0], [0.0])
    early = sample.has_arrived()
    device.link.arrived, device.link.may = True, False
    while_capturing = sample.has_arrived()
    device.link.may = True

    assert (early, while_capturing, sample.has_arrived()) == (False, False, True)
    assert [r.histogram for r in device.measuring.take(sample)] == [
        histogram_of([1.0, 4.0]),
        histogram_of([0.0]),
    ]
    assert device.measuring.device_ns == 250_000


@pytest.mark.parametrize(("device_ms", "counts"), [(1e-6, False), (1e9, True)])
def test_device_time_counts_where_the_device_took_longer_than_the_launch(
    device_ms: float, *, counts: bool
) -> None:
    """What an idle device waits for between two launches is the host's time, and counted once."""
    device = Device()
    device.link.elapsed_ms = device_ms
    sample = device.sample([1.0])
    device.link.arrived = True
    device.measuring.take(sample)

    assert sample.device_ns == int(device_ms * 1e6)
    assert (sample.counted_ns > 0.9 * sample.device_ns) is counts


def test_samples_beyond_those_on_their_way_are_dropped_and_counted() -> None:
    """Once one has arrived there is room again."""
    device = Device()
    flying = [device.sample([float(n)]) for n in range(1, SLABS + 3)]
    device.link.arrived = True
    arrived = [[r.histogram.amax for r in device.measuring.take(s)] for s in flying]
    again = device.measuring.take(device.sample([7.0]))

    assert arrived == [[1.0], [2.0], [3.0], [], []]
    assert device.measuring.dropped == 2
    assert [r.histogram.amax for r in again] == [7.0]


def test_more_tensors_than_a_slab_has_rows_are_dropped_and_counted() -> None:
    """Tensors that fitted before are kept."""
    device = Device(rows=3)
    device.measuring.measure(Topic.WEIGHT, named([1.0], [2.0]))
    device.measuring.measure(Topic.WEIGHT, named([3.0], [4.0]))
    sample: Any = device.measuring.seal()
    device.link.arrived = True

    assert [r.histogram.amax for r in device.measuring.take(sample)] == [1.0, 2.0, 3.0]
    assert device.measuring.dropped == 1


class Compiled:
    """Notes the dtypes that it had to be compiled for."""

    name, max_binned = "compiled", 0

    def __init__(self) -> None:
        self.dtypes: set[torch.dtype] = set()

    def measure(self, pieces: Any, rows: Any, *, stride: Any = None, gate: Any = None) -> None:
        self.dtypes |= {piece.dtype for piece in pieces}

    def norms(self, pieces: Any, out: Any) -> None:
        pass


def test_what_is_slow_can_be_done_at_set_up() -> None:
    """Memory is pinned and the kernel compiled before the first step; on the host not at all."""
    logs = []
    for is_host in (True, False):
        link: Any = FakeLink(is_host=is_host)
        kernel = Compiled()
        measuring = Measuring(lambda _device, kernel=kernel: kernel, 8, link)
        measuring.prepare(torch.device("cpu"))
        logs.append((link.log, kernel.dtypes))
    on_host, (log, dtypes) = logs

    assert on_host == ([], set())
    assert log == ["pin"] * SLABS
    assert dtypes == {torch.float32, torch.float16, torch.bfloat16}


def test_a_discarded_sample_makes_room() -> None:
    """Nobody will ask for it."""
    device = Device()
    for n in range(10):
        device.measuring.discard(device.sample([float(n)]))

    assert device.measuring.dropped == 0


def test_a_closed_gate_leaves_no_measurement() -> None:
    """Rows behind a closed gate are all zero; behind an open one they have elements."""
    device = Device()

    class Gated(EagerKernel):
        def measure(self, pieces: Any, rows: Any, *, stride: Any = None, gate: Any = None) -> None:
            rows[: len(pieces)].zero_()
            if gate is None or gate.item():
                super().measure(pieces, rows, stride=stride)

    device.measuring._kernel_for = lambda _device: Gated()
    device.link.arrived = True
    closed = device.sample([1.0], how=How(gate=torch.zeros(1)))
    opened = device.sample([1.0], how=How(gate=torch.ones(1)))

    assert list(device.measuring.take(closed)) == []
    assert [r.histogram.amax for r in device.measuring.take(opened)] == [1.0]


def test_no_code_runs_where_a_sample_is_freed() -> None:
    """In the callback of a weak reference Python would swallow an interrupt from the keyboard."""
    measuring = Measuring(lambda _device: EagerKernel(), 8)

    assert [known.__callback__ for known in getweakrefs(measuring.open)] == [None]


@pytest.mark.parametrize("on_device", [False, True])
def test_norms_travel_with_their_measurement(*, on_device: bool) -> None:
    """Those of one sample, of tensors that have one, also beside what is measured without."""
    device = Device()
    device.link.arrived = True
    measuring = device.measuring if on_device else host()
    measuring.measure(Topic.WEIGHT, named([8.0]))
    measuring.measure(Topic.GRADIENT, named([3.0, 4.0], [math.inf], [0.0]), How(with_norms=True))

    norms = [r.norm for r in taken(measuring)]

    assert math.isnan(norms[0])
    assert norms[1:] == [5.0, math.inf, 0.0]


VALUES = torch.arange(1, 129).float()


class _Clock:
    """Stands still until it is told otherwise."""

    now = 0

    def __call__(self) -> int:
        return self.now


def _measuring(clock: _Clock, *, with_blocks: bool = True) -> Measuring:
    return Measuring(lambda _d: EagerKernel(), 8, with_blocks=with_blocks, clock=clock)


def _blocks(measuring: Measuring, topic: Topic) -> tuple[object, ...]:
    measuring.measure(topic, [Item("m.weight", "m", VALUES), Item("n.weight", "n", VALUES)])
    found = taken(measuring)
    assert len(found) == 2
    assert found[0].blocks == found[1].blocks
    return tuple(found[0].blocks)


def test_blocks_are_measured_in_the_first_sample_and_five_seconds_later() -> None:
    """Of each topic by itself, and of all tensors of a sample or of none."""
    clock = _Clock()
    measuring = _measuring(clock)
    rows = VALUES.tolist()
    expected = tuple(
        counted([rows[i : i + size] for i in range(0, 128, size)], size, 128.0)
        for size in BLOCK_SIZES
    )

    assert _blocks(measuring, Topic.WEIGHT) == expected
    clock.now = BLOCKS_APART_NS - 1
    assert _blocks(measuring, Topic.WEIGHT) == ()
    assert _blocks(measuring, Topic.GRADIENT) == expected
    clock.now = BLOCKS_APART_NS
    assert _blocks(measuring, Topic.WEIGHT) == expected


def test_blocks_of_updates_and_blocks_that_nobody_wants_are_not_measured() -> None:
    """No matmul reads an update."""
    assert _blocks(_measuring(_Clock()), Topic.UPDATE) == ()
    assert _blocks(_measuring(_Clock(), with_blocks=False), Topic.WEIGHT) == ()


@pytest.mark.parametrize(
    ("start", "then", "left"),
    [
        ([-math.inf, -math.inf, 1.0], [-math.inf, -math.inf, 2.0], [2.0]),
        ([-math.inf, 1.0], [1.0, 1.0], [1.0, 1.0]),  # a mask may be lifted
        ([-math.inf, 1.0], [-math.inf, -math.inf], [-math.inf]),
        ([-math.inf, 1.0], [-math.inf, math.inf], [math.inf]),
        ([-math.inf, 1.0], [-math.inf, math.nan], [math.nan]),
        ([math.nan, 1.0], [math.nan, 1.0], [math.nan, 1.0]),
        ([1.0, 1.0], [-math.inf, 1.0], [-math.inf, 1.0]),
    ],
)
@pytest.mark.parametrize("is_known", [True, False])
def test_infinities_that_a_parameter_begins_with_are_none_of_what_is_measured(
    start: list[float], then: list[float], left: list[float], *, is_known: bool
) -> None:
    """Any more than those, and each NaN, are; of outputs and gradients every infinity is."""
    measuring = host()
    if is_known:
        measuring.know([("m0.weight", len(start))], finite=math.isfinite(sum(start)))
    for values in (start, then):
        measuring.measure(Topic.WEIGHT, named(values))
        measuring.measure(Topic.ACTIVATION, named(values))
        weight, output = taken(measuring)
    assert weight.histogram == histogram_of(left)
    assert output.histogram == histogram_of(then)


def test_a_parameter_that_was_finite_before_the_first_step_is_broken_by_its_first_infinity() -> (
    None
):
    """One of which nobody knows that begins with those it has when it is measured first."""
    measuring = host()
    measuring.know([("m0.weight", 2)], finite=True)
    measuring.measure(Topic.WEIGHT, named([math.inf, 1.0], [math.inf, 1.0]))
    assert [r.histogram.infs for r in taken(measuring)] == [1, 0]

    measuring.measure(Topic.WEIGHT, named([math.inf, 1.0, 1.0]))  # another one of that name
    assert [r.histogram.infs for r in taken(measuring)] == [0]


@pytest.mark.parametrize("then", [[-math.inf, -math.inf], [math.inf, -math.inf]])
@pytest.mark.parametrize(("was_seen", "left"), [(True, 0), (False, 2)])
def test_a_parameter_that_is_infinite_altogether_means_it_only_where_no_step_has_done_it(
    then: list[float], left: int, *, was_seen: bool
) -> None:
    """A limit to clamp by, before the first step; one that is added later may have been broken by its first step."""
    measuring = host()
    if was_seen:
        measuring.know([("m0.weight", 2)], finite=False)
    for _ in range(2):
        measuring.measure(Topic.WEIGHT, named(then))
        assert [r.histogram.infs for r in taken(measuring)] == [left]


@pytest.mark.parametrize("is_measured", [True, False])
def test_what_makes_a_loss_nonfinite_means_its_infinities_no_more(*, is_measured: bool) -> None:
    """Once, and not where one that was finite before the first step is another reason."""
    measuring = host()
    measuring.know([("m0.weight", 2)], finite=False)
    measuring.know([("m1.weight", 2)], finite=True)
    items = named([-math.inf, 1.0], [math.inf, 1.0])
    if is_measured:
        measuring.measure(Topic.WEIGHT, items)
        assert [r.histogram.infs for r in taken(measuring)] == [0, 1]

    assert measuring.blame(["m0.weight", "m1.weight"]) == set()
    measuring.measure(Topic.WEIGHT, items)
    assert [r.histogram.infs for r in taken(measuring)] == [0, 1]

    assert measuring.blame(["m0.weight", "a buffer"]) == {"m0.weight"}
    assert measuring.blame(["m0.weight"]) == set()
    measuring.measure(Topic.WEIGHT, items)
    assert [r.histogram.infs for r in taken(measuring)] == [1, 1]
