"""Who is told of ops, from when on, and what becomes of one that fails."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from ampwatch.guard import Account, Guard
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.ops.call import OpCall
from ampwatch.training.ops.info import op_info
from ampwatch.training.ops.listener import GuardedListeners, OpPlace
from tests.training.sensors.counting import Counted, Log


class Ear:
    """Writes down what it is told, and fails where it is to."""

    def __init__(self, failing: str = "") -> None:
        self.heard: list[str] = []
        self.places: list[OpPlace] = []
        self.modes: set[int] = set()
        self._failing = failing

    def begin(self, step: int) -> None:
        self._hear(f"begin {step}")

    def note(self, call: OpCall, place: OpPlace) -> None:
        self.places.append(place)
        self.modes.add(torch._C._len_torch_dispatch_stack())
        torch.ones(2) * 3  # nothing of this is told
        self._hear(call.info.name)

    def end(self) -> None:
        self._hear("end")

    def _hear(self, what: str) -> None:
        self.heard.append(what)
        if self._failing and what.startswith(self._failing):
            raise ZeroDivisionError


class Listened(Counted):
    """An iteration, number 3, whose ops some listeners are told of."""

    def __init__(self, *models: nn.Module, listeners: Any, count: bool = True) -> None:
        super().__init__(*models)
        self.listeners, self.count = listeners, count

    def __enter__(self) -> Any:
        self.regions.install()
        self.sensor.install()
        assert self.sensor.begin(3, listeners=self.listeners, count=self.count)
        return self


def test_listeners_hear_every_op_that_computes_between_begin_and_end() -> None:
    """What a log of the same program has, without views and what allocates."""

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

    assert not counted.sensor.begin(0, count=False)
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


def test_each_op_comes_with_its_phase_and_module() -> None:
    """Forward, loss, backward, optimizer."""
    model = nn.Sequential(nn.Tanh(), nn.Linear(4, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    ear = Ear()
    with Listened(model, listeners=[ear]):
        model(torch.ones(2, 4)).exp().sum().backward()
        optimizer.step()

    told = dict(zip(ear.heard[1:-1], ear.places, strict=True))
    assert told["tanh"] == OpPlace(Phase.FORWARD, "0", is_inside=True)
    assert told["exp"] == OpPlace(Phase.FORWARD, "", is_inside=False)
    assert told["add_"] == OpPlace(Phase.OPTIMIZER, "", is_inside=False)
    assert [p.module for p in ear.places if p.phase is Phase.BACKWARD][-1] == "1"


@pytest.mark.parametrize("failing", ["begin", "exp", "end"])
def test_a_listener_that_fails_goes_with_its_own_and_leaves_the_others(failing: str) -> None:
    """Those behind another boundary, and the census, go on."""
    account = Account()
    bad, beside, apart = Ear(failing), Ear(), Ear()
    guards = [Guard(name, account, is_thread_safe=True) for name in ("one", "two")]
    one = GuardedListeners(guards[0], [bad, beside])
    two = GuardedListeners(guards[1], [apart])
    model = nn.Linear(4, 4)
    counted = Listened(model, listeners=[one, two])
    for _ in range(2):
        with counted:
            model(torch.ones(2, 4)).exp().log()

    assert [guard.errors for guard in guards] == [1, 0]
    assert counted.by("op") == {"addmm": 1, "exp": 1, "log": 1}
    assert [n for n in apart.heard if n in ("begin 3", "exp", "log", "end")] == [
        *("begin 3", "exp", "log", "end"),
    ] * 2
    assert sum(what.startswith(failing) for what in bad.heard) == 1
    assert bad.heard[-1].startswith(failing)
    assert not any(what.startswith(failing) for what in beside.heard)


def test_two_threads_are_heard_at_the_same_time() -> None:
    """The boundary is no lock: no op is missed because another thread is being told of one."""
    ear = Ear()
    guard = Guard("listeners", Account(), is_thread_safe=True)
    listeners = GuardedListeners(guard, [ear])
    both = threading.Barrier(2, timeout=60.0)
    note = ear.note

    def meet(call: OpCall, place: OpPlace) -> None:
        both.wait()
        note(call, place)

    ear.note = meet  # type: ignore[method-assign]
    threads = [
        threading.Thread(
            target=lambda: listeners.note(_call(), OpPlace(Phase.EVAL, "", is_inside=False))
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert ear.heard == ["exp", "exp"]
    assert (guard.errors, guard.missed) == (0, 0)


def _call() -> OpCall:
    x = torch.ones(2)
    func = torch.ops.aten.exp.default
    return OpCall(func, op_info(func), (x,), {}, func(x))
