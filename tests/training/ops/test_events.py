"""Events of ops: who gets them, from when on, and the end of a sensor that fails."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.ops.call import OpCall
from ampwatch.training.ops.events import Op, OpsBegan, OpsEnded, OpSensor
from ampwatch.training.ops.info import OpInfo
from tests.training.sensors.counting import Counted, Log


class Ear(Sensor):
    """Writes down what it is told."""

    name = "ear"
    is_thread_safe = True

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.modes: set[int] = set()

    def ops_began(self, event: OpsBegan) -> None:
        self.heard.append(f"begin {event.step}")

    def op(self, event: Op) -> None:
        self.modes.add(torch._C._len_torch_dispatch_stack())
        torch.ones(2) * 3  # nothing of this is told
        self.heard.append(event.call.info.name)

    def ops_ended(self, _event: OpsEnded) -> None:
        self.heard.append("end")


class Choosy(OpSensor):
    """Wants some ops, and is content with a glance at calls without a NaN."""

    name = "choosy"
    is_thread_safe = True

    def __init__(self, *wanted: str, in_backward: bool = False) -> None:
        self.heard: list[str] = []
        self.glanced: list[str] = []
        self.is_following = False
        self._wanted = wanted
        self._in_backward = in_backward

    @property
    def follows_all(self) -> bool:
        return self.is_following

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:
        return info.name in self._wanted and in_backward is self._in_backward

    def prefilter(self, call: OpCall) -> bool:
        self.glanced.append(call.info.name)
        return not bool(call.out.isnan().any())

    def op(self, event: Op) -> None:
        self.heard.append(event.call.info.name)


class Listened(Counted):
    """An iteration, number 3, whose ops some sensors are told of."""

    def __init__(self, *models: nn.Module, listeners: Sequence[Sensor], count: bool = True) -> None:
        super().__init__(*models, count=count)
        self.add(*listeners)
        self.step = 3


def test_listeners_hear_every_op_that_computes_between_begin_and_end() -> None:
    """Listeners hear the ops of a log of the same program, but views and allocations."""

    def program() -> None:
        x = torch.ones(3)
        x.view(3, 1).t().exp()
        torch.empty(2).detach()
        x.mul_(2.0)
        torch._foreach_add_([x], 1.0)

    with Log() as log:
        program()
    ear = Ear()
    with Listened(listeners=[ear]):
        program()

    logged = [name.partition("::")[2] for name, _, _ in log.ops]
    expected = [name for name in logged if name not in ("empty", "detach")]
    assert ear.heard == ["begin 3", *expected, "end"]
    assert {"exp", "mul_", "_foreach_add_"} <= set(expected)
    assert ear.modes == {0}


def test_before_the_first_forward_ops_are_told_and_not_counted() -> None:
    """Data is prepared there, and averages are updated; both are of the iteration."""
    model = nn.Linear(4, 4)
    ear = Ear()
    with Listened(model, listeners=[ear]) as counted:
        torch.ones(4).log()
        model(torch.ones(2, 4)).exp()

    assert [n for n in ear.heard if n in ("log", "exp")] == ["log", "exp"]
    assert set(counted.by("op")) == {"addmm", "exp"}


def test_without_counting_there_is_no_census() -> None:
    """The listeners hear the same."""
    model = nn.Linear(4, 4)
    heard = []
    for count in (True, False):
        ear = Ear()
        with Listened(model, listeners=[ear], count=count) as counted:
            model(torch.ones(2, 4)).sum().backward()
        model.zero_grad()
        heard.append(ear.heard)
        assert (counted.census is not None) is count

    assert heard[0] == heard[1]


def test_with_nobody_to_tell_and_nothing_to_count_nothing_is_seen() -> None:
    """No mode is on."""
    counted = Counted(nn.Linear(4, 4))

    assert not counted.sensor.begin(0, count=False, follow=True)
    assert torch._C._len_torch_dispatch_stack() == 0


def test_with_listeners_the_mode_is_on_from_the_beginning_to_the_end() -> None:
    """Without them from the first forward on."""
    model = nn.Linear(4, 4)
    depths = []
    for listeners in ([Ear()], []):
        counted = Listened(model, listeners=listeners)
        with counted:
            depths.append(torch._C._len_torch_dispatch_stack())
            model(torch.ones(2, 4))
            depths.append(torch._C._len_torch_dispatch_stack())
        depths.append(torch._C._len_torch_dispatch_stack())

    assert depths == [1, 1, 0, 0, 1, 0]


def _program() -> None:
    x = torch.ones(2, requires_grad=True)
    for number in (1.0, -1.0):  # the first call of an op is handed on whatever it has made
        y = (x * number).exp().log()
    y.sum().backward()
    (x.detach() - 2.0).log()


def test_a_sensor_gets_the_ops_that_it_wants_unless_a_glance_is_enough() -> None:
    """The first call is handed on, and then what has made a NaN."""
    choosy = Choosy("log")
    with Listened(listeners=[choosy], count=False):
        _program()

    assert choosy.heard == ["log", "log"]
    assert choosy.glanced == ["log", "log"]


def test_a_sensor_gets_the_ops_of_backward_if_it_wants_those() -> None:
    """The same op outside of backward is none of its business."""
    choosy = Choosy("mul", in_backward=True)
    with Listened(listeners=[choosy], count=False):
        _program()

    assert choosy.heard == ["mul"]


def test_a_sensor_that_follows_gets_all_ops_until_it_does_not() -> None:
    """Those that it does not want otherwise, and no glance is asked for."""
    choosy = Choosy("log")
    x = torch.ones(2)
    with Listened(listeners=[choosy], count=False):
        x.exp().exp()
        choosy.is_following = True
        x.exp().sin()
        choosy.is_following = False
        x.exp().sin()

    assert choosy.heard == ["exp", "sin"]
    assert choosy.glanced == []


def test_while_one_sensor_wants_the_event_all_get_it() -> None:
    """A glance that is enough for one of them saves the event only if it is enough for all."""
    content, ear = Choosy("log"), Ear()
    with Listened(listeners=[content, ear], count=False):
        _program()

    assert content.heard == ["log"] * 3
    assert content.glanced == []
    assert ear.heard.count("log") == 3
