"""Calls of the watched models: heard wherever they come from, and nothing stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._dynamo
from torch import fx, nn

from ampwatch.guard import Account
from ampwatch.training.hooks.bus import Bus, OpenIteration
from ampwatch.training.hooks.events import RootCalled, RootReturned
from ampwatch.training.hooks.places import PLACES
from ampwatch.training.hooks.roots import unwrapped
from ampwatch.training.private import GUARDS_CLASSES
from tests.training.bench import Heard

if TYPE_CHECKING:
    from collections.abc import Iterator


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        return self.head(self.block(x)) * factor


class Ear(Heard):
    """Hears the calls of the models, which are on demand."""

    def __init__(self, *models: nn.Module, settled: bool = True) -> None:
        super().__init__(RootCalled, RootReturned)
        iteration = OpenIteration(0)
        self.bus = Bus(Account(), None, iteration, PLACES, models=lambda: models)
        self.bus.add(self)
        self.bus.install()
        iteration.step += 9 * settled
        self.bus.listen(self, RootCalled)
        self.bus.listen(self, RootReturned)

    @property
    def calls(self) -> list[Any]:
        return [event for event in self.events if isinstance(event, RootCalled)]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_call_is_heard_with_its_arguments_and_what_it_returns() -> None:
    """And a call of another module of the same class is not."""
    net, other = Net(), Net()
    ear = Ear(net)
    x = torch.ones(1, 4)
    other(x)
    out = net(x, factor=2.0)
    ear.bus.remove()
    net(x)

    called, returned = ear.events
    assert called.module is returned.module is net
    assert called.args[0] is x
    assert called.kwargs == {"factor": 2.0}
    assert returned.output is out


def test_only_the_class_of_the_model_is_touched_and_it_is_put_back() -> None:
    """What other modules inherit is left alone."""
    before = nn.Module.__call__
    ear = Ear(Net())
    assert "__call__" in vars(Net)
    assert nn.Module.__call__ is before
    ear.bus.remove()
    assert "__call__" not in vars(Net)


def test_two_monitors_hear_the_same_model_and_leave_in_any_order() -> None:
    """The second still hears after the first has gone."""
    net = Net()
    first, second = Ear(net), Ear(net)
    first.bus.remove()
    net(torch.ones(1, 4))
    second.bus.remove()

    assert not first.events
    assert len(second.calls) == 1
    assert "__call__" not in vars(Net)


def test_fx_traces_a_model_as_if_nobody_listened() -> None:
    """Also one whose parts are of its own class, which fx does not enter."""
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.ReLU())
    bare = fx.symbolic_trace(net).code
    ear = Ear(net)
    watched = fx.symbolic_trace(net).code
    ear.bus.remove()

    assert watched == bare


@pytest.mark.parametrize("how", ["wrapper", "in place", "block", "unused"])
def test_a_compiled_model_is_heard_and_compiled_as_it_was(how: str) -> None:
    """One call, one event; and the frames that are compiled are those without ampwatch."""
    counts = []
    for watched in (False, True):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        net = Net()
        called: Any = net
        if how == "wrapper":
            called = torch.compile(net, backend="eager")
        elif how == "in place":
            net.compile(backend="eager")
        elif how == "block":
            net.block.compile(backend="eager")
        else:
            torch.compile(Net(), backend="eager")
        ear = Ear(net) if watched else None
        for _ in range(3):
            called(torch.ones(2, 4)).sum().backward()
        if ear is not None:
            ear.bus.remove()
            # Where replacing a class has code compiled again, those who only compile a part are
            # not heard.
            is_left_alone = GUARDS_CLASSES and how in ("block", "unused")
            assert len(ear.calls) == (0 if is_left_alone else 3)
            assert all(event.module is net for event in ear.calls)
        called(torch.ones(2, 4))
        counts.append(dict(torch._dynamo.utils.counters["frames"]))

    assert counts[0] == counts[1]


def test_a_compiled_function_that_calls_the_model_is_traced_once() -> None:
    """As without ampwatch, also after it has gone; what it calls is not heard."""
    net, frames = Net(), torch._dynamo.utils.counters["frames"]
    frames.clear()
    step = torch.compile(lambda x: net(x).sum(), backend="eager")
    early = Ear(net, settled=False)
    assert "__call__" not in vars(Net)
    step(torch.ones(2, 4))
    early.bus.remove()
    late = Ear(net)
    step(torch.ones(2, 4))
    late.bus.remove()
    step(torch.ones(2, 4))

    assert not [*early.events, *late.events]
    assert frames["total"] == 1


def test_parts_are_heard_where_the_model_itself_cannot_be_called() -> None:
    """Two towers in a ``ModuleDict``, which has no forward."""
    towers = nn.ModuleDict({"image": Net(), "more": nn.ModuleList([nn.Linear(4, 2)])})
    ear = Ear(towers)
    towers["image"](torch.ones(1, 4))
    towers["more"][0](torch.ones(1, 4))
    ear.bus.remove()

    assert [event.module for event in ear.calls] == [towers["image"], towers["more"][0]]


def test_wrappers_are_seen_through() -> None:
    """Whatever is around a model, it is the model that is replayed."""
    net = Net()
    assert unwrapped(torch.compile(net, backend="eager")) is net
    assert unwrapped(net) is net
