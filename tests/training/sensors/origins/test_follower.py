"""Origins are the same whether values are read at once, or measured and known later."""

from __future__ import annotations

import gc
import math
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ampwatch.diagnosis.evidence.origins import Fault, OpTrace, OriginKind
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.sensors.origins import follower as origins
from ampwatch.training.sensors.origins.follower import MAX_FLIGHTS, OriginFollower, Surroundings
from ampwatch.training.sensors.origins.reading import AtOnce, OnDeviceError
from ampwatch.training.sensors.origins.sensor import OriginSensor
from ampwatch.training.transfer.extremes import Measures
from tests.training.sensors.late import FakeDevice, Waits
from tests.training.sensors.listening import STEPPED, Listening, inside

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.events import Op, OpsBegan, OpsEnded


class Told(Sensor):
    """Hands the ops of an iteration to what follows them."""

    name = "told"

    def __init__(self, follower: OriginFollower, *, is_late: bool = True) -> None:
        self.follower = follower
        self.is_late = is_late

    def ops_began(self, event: OpsBegan) -> None:
        self.follower.begin(event.step, is_late=self.is_late)

    def op(self, event: Op) -> None:
        self.follower.note(*event)

    def ops_ended(self, _event: OpsEnded) -> None:
        self.follower.end()


class Following:
    """A log of ops, and the traces that it tells.

    Args:
        model: Whose parameters and buffers have names.
        most: Rows of an iteration.
        sensor: What is told of the ops, made of the log.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        most: int = 65536,
        sensor: Callable[[Context, OriginFollower], Sensor] = lambda _context, log: Told(log),
    ) -> None:
        self.device = FakeDevice()
        self._measures = Measures(self.device, most)
        self._sensor = sensor
        self.listening = Listening(self._make, *([] if model is None else [model]))
        self.bus = self.listening.bench.bus
        self.traces: list[OpTrace] = self.listening.bench.seen

    def _make(self, context: Context) -> Sensor:
        self.log = OriginFollower(Surroundings(context), measures=self._measures)
        return self._sensor(context, self.log)

    def set_scale(self, scale: torch.Tensor) -> torch.Tensor:
        """Have the losses multiplied by a scale."""
        self.bus.scaler = torch.amp.GradScaler("cpu")
        self.bus.scaler._scale = scale
        return scale

    def set_loss(self, on_host: float | None, on_device: float | None) -> None:
        """Set the losses of the open iteration."""
        losses = self.listening.bench.context.losses
        losses.num_losses = int(on_host is not None)
        losses.on_host = on_host or 0.0
        losses.on_device = None if on_device is None else torch.tensor(on_device)

    def follow(self, work: Callable[[], Any]) -> None:
        """Have an iteration followed."""
        with self.listening:
            work()

    def arrive(self) -> OpTrace:
        """Let everything on its way arrive, and return the newest trace."""
        self.device.done = self.device.recorded
        self.log.poll()
        return self.traces[-1]


def _at_once(work: Callable[[], Any], model: nn.Module, place: Any) -> OpTrace:
    listening = Listening(
        lambda context: Told(OriginFollower(Surroundings(context)), is_late=False), model
    )
    listening.place = place
    with listening:
        work()
    return listening.seen[-1]


def _essence(trace: OpTrace) -> list[Any]:
    origins = [
        (
            *(b.kind, b.name, b.op, b.overload, b.parents, b.out_index, b.number),
            *(b.out.nans, not b.out.nans and b.out.posinf, not b.out.nans and b.out.neginf),
            *(b.in_amax, len(b.inputs), dict(b.absorbed_by), b.spread_to, b.in_backward),
            *(b.gradient, b.needs_grad),
        )
        for b in trace.origins
    ]
    return [repr(origins), trace.bad_gradients, trace.num_ops, trace.has_trained]


def _overflow(model: nn.Module) -> None:
    x = torch.full((3, 4), 6e4, dtype=torch.float16)
    torch.softmax((x + x)[:2].t().reshape(-1).float(), 0)


def _absorbed(model: nn.Module) -> None:
    torch.exp(torch.arange(-200.0, 200.0)).reciprocal() + 1.0


def _of_zero(model: nn.Module) -> None:
    divisor = torch.tensor([-1.0, 0.0, 3.0])
    (torch.ones(3) / divisor).log1p()


def _constant(model: nn.Module) -> None:
    scores = torch.zeros(2, 3).masked_fill(torch.ones(2, 3) > 0, -math.inf)
    torch.softmax(scores, -1)


def _parts(model: nn.Module) -> None:
    x = torch.full((4, 4), 1e30)
    x[1] = x[1] * x[1]
    x[2:].sum() + x[:, 0].mul(2.0).sum()
    x[1].zero_()
    x.mean()


def _parameter(model: nn.Module) -> None:
    with torch.no_grad():
        model.weight.mul(2.0).relu()
        model.seen + 1.0


def _in_a_list(model: nn.Module) -> None:
    torch._foreach_mul([torch.full((2,), 1e30), torch.ones(3)], [1e30, 2.0])
    torch._foreach_norm([torch.full((2,), 6e4, dtype=torch.float16)])


def _through_fp8(model: nn.Module) -> None:
    torch.zeros(4).log().to(torch.float8_e4m3fn).float().mul(2.0)


def _backward(model: nn.Module) -> None:
    x = torch.zeros(3, requires_grad=True)
    (model(torch.ones(1, 4)).sum() * x.sqrt().sum()).backward()


def _averaged(model: nn.Module) -> None:
    norm = nn.BatchNorm1d(4)
    norm(torch.full((3, 4), 3e38))
    norm.running_var + 1.0


def _complex(model: nn.Module) -> None:
    ones = torch.ones(2, dtype=torch.complex64)
    (ones / torch.zeros(2, dtype=torch.complex64)).conj().abs().add(1.0)
    (ones * 1e30).mul(ones * 1e30).real.add(1.0)
    torch.fft.irfft(torch.full((3,), math.nan, dtype=torch.complex64)).angle()


PROGRAMS = [
    *(_overflow, _absorbed, _of_zero, _constant, _parts, _parameter, _in_a_list, _averaged),
    *(_backward, _through_fp8, _complex),
]
PLACES = [inside("block"), inside("block", Phase.BACKWARD), STEPPED]


def _model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    model.register_buffer("seen", torch.tensor(math.inf))
    with torch.no_grad():
        model.weight[1, 2] = math.nan
    return model


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.phase.name)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_log_gives_what_reading_at_once_gives(
    program: Callable[[nn.Module], None], place: Any
) -> None:
    """Both give the same origins, ops, kinds and ends."""
    model = _model()
    expected = _at_once(lambda: program(model), model, place)
    model.zero_grad()
    following = Following(model)
    following.listening.place = place
    following.follow(lambda: program(model))

    assert expected.origins
    assert following.traces == []
    assert _essence(following.arrive()) == _essence(expected)


def _elementwise(model: nn.Module) -> None:
    half = torch.tensor([250.0, 300.0, 3.0], dtype=torch.float16)
    half * half
    torch.tensor([0.0, 2.0]).log()
    torch.tensor([-3.0, -2.0]).sqrt()
    torch.ones(3) / torch.tensor([-1.0, 0.0, 3.0])
    half / 1e-7
    half.float() * 1e38


def test_an_elementwise_op_is_asked_alike_on_both_sides() -> None:
    """Its operands on a host, the ends of their ranges where the operands are gone."""
    model = _model()
    following = Following(model)
    following.follow(lambda: _elementwise(model))
    faults = [origin.answer.fault for origin in following.arrive().origins]
    expected = _at_once(lambda: _elementwise(model), model, inside("block"))

    assert faults == [origin.answer.fault for origin in expected.origins]
    assert faults == [
        *(Fault.OVERFLOW, Fault.POINT, Fault.INVALID, Fault.POINT, Fault.POINT, Fault.OVERFLOW)
    ]


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(
    ("work", "op", "kind"),
    [
        (lambda z, zero: (z / zero).abs(), "div", OriginKind.OP),
        (lambda z, zero: (z / zero).conj().angle(), "div", OriginKind.OP),
        (lambda z, zero: torch.fft.ifft(z / zero).real.sum(), "div", OriginKind.OP),
        (lambda z, zero: (z * 1e30).mul(z * 1e30).abs(), "mul", OriginKind.OP),
        (lambda z, _: z.mul(complex(math.nan, 1.0)).abs(), "mul", OriginKind.CONSTANT),
        (
            lambda z, _: torch.polar(z.abs().log1p() * math.inf, z.angle()).abs(),
            "mul",
            OriginKind.CONSTANT,
        ),
        # What the largest parts of finite numbers have no magnitude for, ``abs`` itself overflows.
        (lambda z, _: (z * 3e38).abs(), "abs", OriginKind.OP),
    ],
)
def test_complex_numbers_are_read_as_the_parts_they_consist_of(
    work: Callable[..., Any], op: str, kind: Any, *, is_late: bool
) -> None:
    """So that whoever reads a NaN of theirs is not taken for the one that has made it."""
    z = torch.full((2,), 1.0 + 1.0j)
    model, zero = nn.Linear(2, 2), torch.zeros(2, dtype=torch.complex64)
    if is_late:
        following = Following(model)
        following.follow(lambda: work(z, zero))
        trace = following.arrive()
    else:
        trace = _at_once(lambda: work(z, zero), model, inside("block"))

    assert trace.origins[0].op == op
    assert trace.origins[0].kind is kind
    assert all(origin.out.dtype != "complex64" for origin in trace.origins)


def _after_another(work: Callable[[nn.Module], None], model: nn.Module) -> None:
    torch.ones(2) + 1.0
    work(model)


@pytest.mark.parametrize("is_late", [False, True])
def test_an_op_that_overwrites_a_buffer_that_was_bad_has_not_made_it_so(*, is_late: bool) -> None:
    """Of what it has read nothing is left; the buffer was read before."""
    for work, kind in (
        (lambda model: model.seen.mul_(0.5).add(1.0), OriginKind.BUFFER),
        (lambda model: model.seen.fill_(0.0).log_(), OriginKind.OP),
    ):
        model = _model()
        run = partial(_after_another, work, model)
        if is_late:
            following = Following(model)
            following.follow(run)
            trace = following.arrive()
        else:
            trace = _at_once(run, model, inside("block"))

        assert [origin.kind for origin in trace.origins] == [kind]
        assert trace.origins[0].name == ("seen" if kind is OriginKind.BUFFER else "")


def test_a_tensor_of_nothing_but_infinities_is_known_as_one() -> None:
    """It holds no other number, as a mask or a sentinel, and no data."""
    following = Following()
    for values, amax in (([math.inf] * 3, 0.0), ([math.inf, 1.0, 2.0], math.nan)):
        given = torch.tensor(values)
        following.follow(lambda given=given: given + 1.0)
        (origin,) = following.arrive().origins
        assert repr(origin.out.amax) == repr(amax)


def test_nothing_waits_while_ops_are_followed() -> None:
    """No scalar is read, no copy blocks: neither in an op, nor at the end, nor while it flies."""
    model = _model()
    waits = Waits()

    class Counting(Told):
        """Is told as the log is, inside of a mode that counts."""

        def op(self, event: Op) -> None:
            with waits:
                super().op(event)

        def ops_ended(self, event: OpsEnded) -> None:
            with waits:
                super().ops_ended(event)
                self.follower.poll()

    following = Following(model, sensor=lambda _context, log: Counting(log))
    following.set_loss(1.0, 2.0)
    following.set_scale(torch.tensor(1024.0))
    for program in PROGRAMS:
        following.follow(lambda program=program: program(model))
        following.arrive()

    assert waits.ops > 100
    assert waits.count == 0
    assert following.log.dropped == 0


def test_scale_and_loss_come_with_the_rest() -> None:
    """A trace is judged on its own, so it needs both."""
    following = Following()
    following.set_scale(torch.tensor(64.0))
    for on_host, on_device in [(1.0, 2.0), (1.0, math.nan), (math.inf, 2.0), (None, math.inf)]:
        following.set_loss(on_host, on_device)
        following.follow(lambda: torch.full((2,), 1e30).square())
        trace = following.arrive()
        assert trace.scale == 64.0
        assert trace.loss_nonfinite is not (on_host == 1.0 and on_device == 2.0)

    following.set_loss(None, None)
    following.follow(lambda: torch.ones(2) + 1.0)
    assert following.arrive().loss_nonfinite is None


def test_what_an_optimizer_writes_is_not_measured() -> None:
    """Writes of an optimizer cost nothing and are blamed on no op; earlier rows of the storage are dropped."""
    following = Following()
    weight = torch.ones(3)

    def step() -> None:
        weight.add_(1.0)
        following.bus.is_optimizer_stepping = True
        weight.mul_(math.inf)
        following.bus.is_optimizer_stepping = False
        weight.add(1.0)

    following.follow(step)
    origins = following.arrive().origins
    assert [(b.kind, b.op) for b in origins] == [(OriginKind.OTHER, "add")]


def test_memory_that_is_used_again_is_another_tensor() -> None:
    """A tensor that was freed gives its address to the next one, not what was known of it."""
    following = Following()

    def work() -> None:
        for _ in range(4):
            torch.full((1000,), 1e30).square()
            empty = torch.empty(1000)
            empty.numpy()[:] = 1.0  # written where no op is seen
            empty.add(1.0)

    following.follow(work)
    origins = following.arrive().origins
    assert [(b.kind, b.op) for b in origins] == [(OriginKind.OP, "pow")] * 4
    assert all(not b.absorbed_by for b in origins)


def test_no_tensor_is_kept() -> None:
    """Tensors and their memory go while the iteration lasts, and while the log is on its way."""
    following = Following()

    def work() -> None:
        tensor = torch.ones(10)
        made = tensor * 2.0
        references = weakref.ref(tensor), weakref.ref(made)
        storage = made.untyped_storage()._weak_ref()
        del tensor, made
        gc.collect()
        assert [reference() for reference in references] == [None, None]
        assert torch.UntypedStorage._expired(storage)
        torch.UntypedStorage._free_weak_ref(storage)

    following.follow(work)
    assert following.arrive().num_ops == 2


def test_an_iteration_for_which_there_is_no_room_is_counted_and_not_reported() -> None:
    """Half of an iteration would show origins that were none."""
    following = Following(most=3)
    following.follow(lambda: [torch.ones(1) + 1.0 for _ in range(5)])
    following.follow(lambda: torch.ones(1) + 1.0)

    assert following.arrive().step == 1
    assert len(following.traces) == 1
    assert following.log.dropped == 1


def test_a_log_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer iteration is dropped and counted."""
    monkeypatch.setattr(origins, "MAX_OPS", 4)
    following = Following()
    following.follow(lambda: [torch.ones(1) for _ in range(6)])

    assert (following.log.dropped, following.log.in_flight) == (1, 0)


def test_a_host_that_falls_behind_drops_the_newest_and_counts_it() -> None:
    """The log never waits, and delivers the others in their order."""
    following = Following()
    for _ in range(MAX_FLIGHTS + 3):
        following.follow(lambda: torch.ones(1) + 1.0)
    assert following.log.dropped == 3
    following.arrive()
    following.follow(lambda: torch.ones(1) + 1.0)
    following.arrive()

    assert [t.step for t in following.traces] == [*range(MAX_FLIGHTS), MAX_FLIGHTS + 3]


def test_a_captured_graph_is_not_followed() -> None:
    """Nothing is reported of the iteration in which it is captured."""
    following = Following()

    def work() -> None:
        torch.ones(1) + 1.0
        following.device.captures = True
        torch.full((1,), 1e30).square()
        following.device.captures = False
        torch.full((1,), 1e30).square()

    following.follow(work)
    assert (following.log.dropped, following.log.in_flight) == (1, 0)


class _Elsewhere(AtOnce):
    """Takes float64 for what lies on a device."""

    def doubtful(self, outputs: Any) -> list[int]:
        if any(tensor.dtype is torch.float64 for tensor in outputs):
            raise OnDeviceError
        return super().doubtful(outputs)


def test_from_the_first_tensor_on_a_device_values_are_read_later() -> None:
    """The iteration in which it comes is lost, and counted."""

    def sensor(context: Context, log: OriginFollower) -> Sensor:
        made = OriginSensor(context)
        made._origins = log
        log._at_once = _Elsewhere(dict)
        return made

    following = Following(sensor=sensor)
    following.follow(lambda: torch.full((1,), 1e30).square())
    known = list(following.traces)
    following.follow(lambda: torch.ones(1).double().float() + 1.0)
    following.follow(lambda: torch.full((1,), 1e30).square())
    assert following.traces == known
    following.arrive()

    assert [t.step for t in known] == [0]
    assert [(t.step, len(t.origins)) for t in following.traces[1:]] == [(2, 1)]
    assert following.log.dropped == 1


def test_what_fused_code_has_written_is_read_anew_and_named_where_it_is_read() -> None:
    """At once or later: no op has written it, and what was measured there before is gone."""
    traces = []
    for following in (
        Following(),
        Following(
            sensor=lambda context, _log: Told(OriginFollower(Surroundings(context)), is_late=False)
        ),
    ):
        made = torch.ones(4)
        memory = made.numpy()
        listening = following.listening
        with listening:
            made.add(1.0)
            memory[:] = math.inf
            listening.place = inside("block")._replace(follows_fused=True, unseen=(made,))
            made.mul(2.0)
        listening.place = inside("")
        kept = weakref.ref(made)
        del made, memory
        assert kept() is None
        traces.append(following.arrive())

    for trace in traces:
        (origin,) = trace.origins
        assert (origin.kind, origin.op, origin.module) == (OriginKind.OP, "mul", "block")
        assert origin.is_unseen
