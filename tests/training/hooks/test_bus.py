"""The bus: what is placed in torch and when, and who is told of what."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._dynamo  # it replaces functions of torch itself, when it is imported first
from torch import nn
from torch.nn.modules import module as module_state
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_state
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ampwatch.training.devices import graph_classes
from ampwatch.training.hooks import events as on
from ampwatch.training.hooks.bus import TORCH_EVENTS, handler_name
from ampwatch.training.hooks.places import PLACES
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.ops.events import OP_EVENTS
from ampwatch.training.private import SEES_COMPILED
from tests.training.bench import Bench, Heard
from tools.site.patched import sensors_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GradScaler = torch.amp.GradScaler

OWNERS: tuple[Any, ...] = (
    GradScaler,
    Optimizer,
    nn.Module,
    torch.autocast,
    torch.autograd.graph.saved_tensors_hooks,
    torch._TorchCompileWrapper,
    torch._TorchCompileInductorWrapper,
    *graph_classes(),
    torch.distributed.ProcessGroup,
    torch.distributed.Work,
    _BaseDataLoaderIter,
    torch,
    torch.utils,
    torch.linalg,
    torch.autograd,
    nn.utils,
    clip_grad,
)
HOOKS = [
    (module, name)
    for module in (module_state, optimizer_state)
    for name in vars(module)
    if name.startswith("_global_") and name.endswith(("hooks", "hooks_always_called"))
]


class Model(nn.Module):
    """A class of the user's, of which one is watched."""

    def forward(self) -> None:
        """Do nothing."""


MODEL = Model()


def in_torch() -> dict[str, object]:
    """Everything in which something may be replaced or hooked, as it is now."""
    methods = {
        f"{owner.__name__}.{name}": id(value)
        for owner in (*OWNERS, Model)
        for name, value in list(vars(owner).items())
        if callable(value)
    }
    entries = {
        "asked": id(getattr(module_state, "_has_any_global_hook", None)),
        "entered": id(torch._dynamo.eval_frame._callback_from_stance),  # type: ignore[attr-defined]
        "exit": id(sys.exit),
    }
    return methods | entries | {name: tuple(getattr(module, name)) for module, name in HOOKS}


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """After each test torch is as it was."""
    before = in_torch()
    yield
    assert in_torch() == before


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(scaler: GradScaler | None = None, *sensors: Sensor) -> Bench:
        made.append(Bench([MODEL], scaler=scaler))
        made[-1].install(*sensors)
        return made[-1]

    yield make
    for one in made:
        one.remove()


class Training:
    """A parameter, its optimizer and its scaler."""

    def __init__(self, scaler: Any = None, scale: float = 4.0) -> None:
        self.weight = nn.Parameter(torch.ones(2))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.5)
        self.scaler = (scaler or GradScaler)("cpu", init_scale=scale)

    def step(self, *, unscale: bool = False) -> None:
        self.scaler.scale(self.weight.sum()).backward()
        if unscale:
            self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


SCALER_EVENTS = (
    on.Scaled,
    on.Unscaling,
    on.Unscaled,
    on.StepBegan,
    on.StepEnded,
    on.Updating,
    on.Updated,
)


def kinds(heard: Heard) -> list[type]:
    return [type(event) for event in heard.events]


# The methods that a LossScaler names are replaced where there is one: tests/training/scalers.
ALWAYS_THERE = [p for p in PLACES if p.events and on.EndCalled not in p.events]


@pytest.mark.parametrize("place", ALWAYS_THERE, ids=lambda p: p.what[:40])
def test_a_place_is_there_only_while_a_sensor_wants_one_of_its_events(
    bench: Callable[..., Bench], place: Any
) -> None:
    """One event is enough to have it, and it is the only one then."""
    if on.CompiledEntering in place.events and not SEES_COMPILED:
        pytest.skip("before PyTorch 2.10 it is one more listener to what is tapped for everybody")
    before = in_torch()
    idle = bench(None)  # captures go by all sensors unheard: what is there for that, none wants
    for_nobody = in_torch()
    for event in place.events:
        heard = Heard(event)
        one = bench(None, heard)
        if event in on.ON_DEMAND:
            assert in_torch() == for_nobody
            one.bus.listen(heard, event)
        assert [p for p in one.bus._placed if p.events] == [place]
        assert in_torch() != for_nobody
        one.remove()
        assert in_torch() == for_nobody
    idle.remove()
    assert in_torch() == before


def test_a_place_goes_with_the_last_of_those_who_want_it(bench: Callable[..., Bench]) -> None:
    """Two events of one place, and two sensors of one event."""
    heard, too = Heard(on.ForwardBegan), Heard(on.ForwardBegan)
    one = bench(None, heard, too)
    for sensor in (heard, too, too):
        one.bus.listen(sensor, on.ForwardBegan)
    nn.Identity()(1)
    one.bus.ignore(heard, on.ForwardBegan)
    one.bus.ignore(heard, on.ForwardBegan)
    nn.Identity()(2)
    during = len(module_state._global_forward_pre_hooks)
    one.bus.ignore(too, on.ForwardBegan)
    nn.Identity()(3)

    assert (during, len(module_state._global_forward_pre_hooks)) == (1, 0)
    assert [event.args for event in heard.events] == [(1,)]
    assert [event.args for event in too.events] == [(1,), (2,)]


def test_the_events_of_a_step_come_in_the_order_of_the_calls(bench: Callable[..., Bench]) -> None:
    """With the watched scaler and its optimizer in them."""
    mine = Training()
    heard = Heard(*SCALER_EVENTS, on.OptimizerStepped)
    bench(mine.scaler, heard)
    mine.step(unscale=True)

    assert kinds(heard) == [
        on.Scaled,
        on.Unscaling,
        on.Unscaled,
        on.StepBegan,
        on.OptimizerStepped,
        on.StepEnded,
        on.Updating,
        on.Updated,
    ]
    assert heard.events[3] == on.StepBegan(mine.scaler, mine.optimizer)
    assert heard.events[4] == on.OptimizerStepped(mine.optimizer, by_scaler=True, is_outermost=True)
    assert heard.events[7] == on.Updated(mine.scaler, is_given=False)


def test_what_the_step_unscales_itself_is_part_of_the_step(bench: Callable[..., Bench]) -> None:
    """Only the user's own calls are told of, also after a step that has raised."""
    mine = Training()
    heard = Heard(on.Unscaling, on.Unscaled)
    one = bench(mine.scaler, heard, Heard(on.StepBegan), Heard(on.Updating))
    mine.step()
    assert (heard.events, one.bus.is_stepping) == ([], False)

    mine.scaler.scale(mine.weight.sum()).backward()
    mine.optimizer.register_step_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        mine.scaler.step(mine.optimizer)
    mine.scaler.update()
    mine.scaler.scale(mine.weight.sum()).backward()
    mine.scaler.unscale_(mine.optimizer)

    assert kinds(heard) == [on.Unscaling, on.Unscaled]


def test_other_scalers_are_heard_only_by_those_who_want_any(bench: Callable[..., Bench]) -> None:
    """Those hear of the watched one as well."""
    mine, other = Training(), Training()
    watching = Heard(on.Scaled, on.StepBegan, on.StepEnded, on.Updating, on.ScalerLoaded)
    any_of_them = Heard(
        on.Scaled, on.StepBegan, on.StepEnded, on.Updating, on.ScalerLoaded, any_scaler=True
    )
    bench(mine.scaler, watching, any_of_them)
    for training in (mine, other):
        training.step()
        training.scaler.load_state_dict(training.scaler.state_dict())

    told = [on.Scaled, on.StepBegan, on.StepEnded, on.Updating, on.ScalerLoaded]
    assert kinds(watching) == told
    assert kinds(any_of_them) == told * 2
    assert {event.scaler for event in watching.events} == {mine.scaler}


class Passing(GradScaler):
    """Has methods of its own that call those of torch."""

    def scale(self, outputs: Any) -> Any:
        return super().scale(outputs)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        super().update(new_scale)


class Deciding(GradScaler):
    """Has an update of its own that does not call that of torch."""

    def update(self, new_scale: Any = None) -> None:
        self._per_optimizer_states.clear()


CLASSES = [GradScaler, Passing, Deciding]


@pytest.mark.parametrize("after", CLASSES)
@pytest.mark.parametrize("before", CLASSES)
def test_a_scaler_that_takes_over_is_heard_once_a_call(
    bench: Callable[..., Bench], before: type, after: type
) -> None:
    """Whatever methods of their own the two classes have; the older one is one of the others then."""
    first, second = Training(before), Training(after)
    watching, any_of_them = Heard(*SCALER_EVENTS), Heard(on.StepBegan, any_scaler=True)
    one = bench(first.scaler, watching, any_of_them)
    first.step()
    of_first = list(watching.events)
    one.bus.follow(second.scaler)
    second.step()
    first.step()

    told = [on.Scaled, on.StepBegan, on.StepEnded, on.Updating, on.Updated]
    assert [type(event) for event in of_first] == told
    assert [type(event) for event in watching.events[len(of_first) :]] == told
    assert [event.scaler for event in any_of_them.events] == [
        first.scaler,
        second.scaler,
        first.scaler,
    ]


class Follows(Sensor):
    """Follows whichever scaler steps."""

    name = "follows"
    any_scaler = True

    def __init__(self) -> None:
        self.bus: Any = None

    def step_began(self, event: on.StepBegan) -> None:
        if event.scaler is not self.bus.scaler:
            self.bus.follow(event.scaler)


@pytest.mark.parametrize("after", CLASSES)
def test_a_scaler_that_takes_over_with_a_step_is_heard_from_that_step_on(
    bench: Callable[..., Bench], after: type
) -> None:
    """Each call once, its end included; what it unscales is part of the step."""
    first, second = Training(), Training(after)
    follows = Follows()
    heard = Heard(on.StepBegan, on.StepEnded, on.Unscaling, on.Updating, on.Updated)
    one = bench(first.scaler, follows, heard)
    follows.bus = one.bus
    second.step()

    assert kinds(heard) == [on.StepBegan, on.StepEnded, on.Updating, on.Updated]
    assert not one.bus.is_stepping


class Moody(GradScaler):
    """Cannot say whether it is enabled; the steps of PyTorch's scaler never ask."""

    def is_enabled(self) -> bool:
        msg = "not now"
        raise RuntimeError(msg)


def test_a_scaler_is_asked_nothing_that_its_own_step_does_not_ask(
    bench: Callable[..., Bench],
) -> None:
    """A method of the user's that raises would raise in the user's step."""
    mine = Training()
    heard = Heard(on.StepBegan, on.StepEnded)
    bench(mine.scaler, heard)
    mine.scaler.__class__ = Moody  # after the set-up, which asks
    mine.scaler.scale(mine.weight.sum()).backward()
    mine.scaler.step(mine.optimizer)

    assert kinds(heard) == [on.StepBegan, on.StepEnded]


def test_a_call_without_an_optimizer_is_no_event(bench: Callable[..., Bench]) -> None:
    """PyTorch raises what the user sees; no sensor fails over it."""
    mine = Training()
    heard = Heard(on.StepBegan, on.StepEnded, on.Unscaling, on.Unscaled)
    bench(mine.scaler, heard)
    for call in (mine.scaler.step, mine.scaler.unscale_):
        with pytest.raises(TypeError, match="optimizer"):
            call()

    assert heard.events == []


class Closes(Sensor):
    """Closes an iteration with each update, as the ledger does."""

    name = "closes"

    def __init__(self) -> None:
        self.bench: Any = None

    def updated(self, _event: on.Updated) -> None:
        self.bench.iteration.step += 1

    def optimizer_stepped(self, _event: on.OptimizerStepped) -> None:
        if self.bench.bus.scaler is None:
            self.bench.iteration.step += 1


class Late(Sensor):
    """Comes after ``Closes``."""

    name = "late"

    def __init__(self) -> None:
        self.told = 0

    def updated(self, _event: on.Updated) -> None:
        self.told += 1

    def optimizer_stepped(self, _event: on.OptimizerStepped) -> None:
        self.told += 1


@pytest.mark.parametrize("is_scaled", [True, False])
def test_the_safe_point_is_at_the_end_of_the_call_that_closes_an_iteration(
    bench: Callable[..., Bench], *, is_scaled: bool
) -> None:
    """Once an iteration, when all sensors are done, and outside of every guard."""
    mine, closes, late = Training(), Closes(), Late()
    one = bench(mine.scaler if is_scaled else None, closes, late)
    closes.bench = one
    seen: list[Any] = []

    def closed(step: int) -> None:
        seen.append((step, late.told, one.account.is_mine))

    def step() -> None:
        if is_scaled:
            mine.step()
        else:
            mine.weight.sum().backward()
            mine.optimizer.step()

    step()
    one.bus.call_at_boundary(closed)
    for _ in range(2):
        step()
    one.bus.forget_at_boundary(closed)
    one.bus.forget_at_boundary(closed)
    step()

    # With a scaler the optimizer's step is told of as well.
    each = 1 + is_scaled
    assert seen == [(1, 2 * each, False), (2, 3 * each, False)]


def test_an_exception_of_the_safe_point_reaches_the_user(bench: Callable[..., Bench]) -> None:
    """From the call that has closed the iteration; no sensor is off, and the next one is told."""
    mine, closes = Training(), Closes()
    closes.bench = one = bench(mine.scaler, closes)
    wrong = ValueError("the user's own")
    steps: list[int] = []

    def closed(step: int) -> None:
        steps.append(step)
        if step == 0:
            raise wrong

    one.bus.call_at_boundary(closed)
    with pytest.raises(ValueError, match="the user's own") as caught:
        mine.step()
    mine.step()

    assert caught.value is wrong
    assert steps == [0, 1]


class Everything(Heard):
    """Wants all events there are, those on demand from the beginning."""

    def __init__(self, bus: Any = None, error: Exception | None = None) -> None:
        super().__init__(*TORCH_EVENTS, any_scaler=True)
        self.bus, self.error = bus, error
        self.removals = 0

    def installed(self) -> None:
        for event in on.ON_DEMAND:
            self.bus.listen(self, event)
        if self.error is not None:
            raise self.error

    def removed(self) -> None:
        self.removals += 1


def test_nothing_is_left_in_torch_after_the_removal() -> None:
    """Whatever was placed, and however often it is removed."""
    before = in_torch()
    one = Bench(scaler=GradScaler("cpu"))
    everything = Everything(one.bus)
    one.install(everything)
    during = in_torch()
    one.remove()
    one.remove()

    assert list(one.bus._placed) == []
    assert sum(during[name] != value for name, value in before.items()) > len(PLACES)
    assert in_torch() == before
    assert everything.removals == 2


def test_nobody_is_told_of_anything_after_the_removal(bench: Callable[..., Bench]) -> None:
    """Code that a callback has interrupted with the removal goes on and emits."""
    heard = Heard(on.IterationClosed)
    one = bench(None, heard)
    one.remove()
    one.bus.emit(on.IterationClosed(None))  # type: ignore[arg-type] # nobody reads it

    assert heard.events == []


def test_what_is_to_wake_a_sensor_must_be_an_event(bench: Callable[..., Bench]) -> None:
    """A word that is misspelt would let it sleep for ever."""
    sensor = Heard(on.StepBegan)
    sensor.waking = frozenset({"step_began", "step_begun"})  # type: ignore[misc]
    with pytest.raises(ValueError, match=r"expected names of events, got \['step_begun'\]"):
        bench(None, sensor)


@pytest.mark.parametrize("level", ["light", "deep"])
def test_methods_that_take_an_event_have_its_name(level: str) -> None:
    """One of another name would never be called, and nobody would notice."""
    names = {kind.__name__: handler_name(kind) for kind in (*TORCH_EVENTS, *OP_EVENTS)}
    methods = [
        (names[kind], name)
        for sensor in sensors_of(level)
        for name, method in inspect.getmembers(type(sensor), inspect.isfunction)
        if not name.startswith("_")
        for given in [{"_event": "", "event": "", **method.__annotations__}]
        for kind in [(given["event"] or given["_event"]).removeprefix("on.")]
        if kind in names
    ]

    assert len(methods) > len(sensors_of(level))
    assert [(expected, name) for expected, name in methods if expected != name] == []


def test_a_sensor_that_cannot_begin_leaves_nothing(bench: Callable[..., Bench]) -> None:
    """Its error reaches the user; those who have begun are told that it is over."""
    before = in_torch()
    one = Bench(scaler=GradScaler("cpu"))
    wrong = ValueError("no such device")
    begun, broken = Everything(one.bus), Everything(one.bus, wrong)
    with pytest.raises(ValueError, match="no such device") as caught:
        one.install(begun, broken)

    assert caught.value is wrong
    assert in_torch() == before
    assert (begun.removals, broken.removals) == (1, 1)


def test_a_place_that_cannot_be_put_on_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the half of it that was there already."""
    one = Bench()
    with monkeypatch.context() as patch:
        patch.delattr(nn.Module, "zero_grad")
        before = in_torch()
        with pytest.raises(AttributeError, match="zero_grad"):
            one.install(Everything(one.bus))

        assert in_torch() == before


def test_a_bus_does_not_take_off_what_another_one_has_placed(bench: Callable[..., Bench]) -> None:
    """Two trainings in one process."""
    mine, other = Training(), Training()
    heard, too = Heard(on.StepBegan, on.OptimizerStepped), Heard(on.StepBegan, on.OptimizerStepped)
    one, another = bench(mine.scaler, heard), bench(other.scaler, too)
    one.remove()
    mine.step()
    other.step()
    another.remove()

    assert heard.events == []
    # Optimizers are told of whoever steps them: whose they are is for the sensors to know.
    assert kinds(too) == [on.OptimizerStepped, on.StepBegan, on.OptimizerStepped]
