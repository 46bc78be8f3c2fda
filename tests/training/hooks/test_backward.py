"""Calls of backward as they are heard: from the outermost one, in every thread, also if it raises."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import ampwatch
from ampwatch.training.hooks.sensor import Sensor
from tests.training.bench import Bench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ampwatch.training.hooks.events import BackwardBegan


class Raises(torch.autograd.Function):
    """The identity; going back through it raises, as for want of memory."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, _gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        raise RuntimeError


class Waits(torch.autograd.Function):
    """The identity; going back through it calls what it was given."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, call: Callable[[], None]) -> torch.Tensor:  # type: ignore[override]
        ctx.call = call
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        ctx.call()
        return gradient, None


class Ear(Sensor):
    """Notes what it hears, and whether each call came to its end."""

    name = "ear"

    def __init__(self) -> None:
        self.calls: list[BackwardBegan] = []
        self.ended = 0

    def backward_began(self, call: BackwardBegan) -> Callable[[], None]:
        self.calls.append(call)
        return self._end

    def _end(self) -> None:
        self.ended += 1


@pytest.fixture
def ear() -> Iterator[Ear]:
    """One who listens until the test is over; then the function is the original again."""
    before = torch.autograd.backward
    bench, ear = Bench(), Ear()
    bench.install(ear)
    assert torch.autograd.backward is not before
    yield ear
    bench.remove()
    assert torch.autograd.backward is before


def leaf() -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


def in_a_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def fails() -> None:
    with pytest.raises(RuntimeError):
        Raises.apply(leaf()).sum().backward()


def test_both_spellings_are_heard(ear: Ear) -> None:
    """A method of the tensor, and a function of several tensors and gradients."""
    x = leaf()
    loss = x.sum()
    loss.backward()
    torch.autograd.backward(
        [loss_of := (2 * x).sum(), x.prod()], grad_tensors=[None, torch.ones(())]
    )
    assert [len(call.tensors) for call in ear.calls] == [1, 2]
    assert ear.calls[0].tensors[0] is loss
    assert ear.calls[1].tensors[0] is loss_of
    assert len(ear.calls[1].gradients) == 2
    assert ear.ended == 2


def test_one_within_another_is_part_of_it(ear: Ear) -> None:
    """Checkpointing goes back through its piece from within."""
    x = leaf()
    checkpoint(torch.sin, x, use_reentrant=True).sum().backward()
    assert (len(ear.calls), ear.ended) == (1, 1)


def test_one_that_raises_is_no_end_and_the_next_is_heard(ear: Ear) -> None:
    """A backward that has raised in a thread that is gone does not matter either."""
    fails()
    in_a_thread(fails)
    leaf().sum().backward()
    assert [call.is_alone for call in ear.calls] == [True, True, True]
    assert ear.ended == 1


def test_one_that_runs_beside_another_is_not_alone(ear: Ear) -> None:
    """The outer one is in its backward while a thread begins and ends its own."""
    Waits.apply(leaf(), lambda: in_a_thread(lambda: leaf().sum().backward())).sum().backward()
    assert [call.is_alone for call in ear.calls] == [True, False]
    assert ear.ended == 2


class Held:
    """Something that only a graph holds."""


@pytest.mark.parametrize("level", ["light", "standard", "deep"])
@pytest.mark.parametrize("in_region", [False, True])
def test_a_graph_is_gone_once_its_backward_has_raised(level: str, *, in_region: bool) -> None:
    """A training that goes on after running out of memory needs the memory."""
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    with ampwatch.monitor(model, scaler, optimizer=optimizer, serve=False, level=level):
        held = Held()
        seen = weakref.ref(held)

        def step(held: Held) -> None:
            out = Raises.apply(Waits.apply(model(torch.ones(2, 3)), lambda: held)).sum()
            with pytest.raises(RuntimeError), torch.autocast("cpu", enabled=in_region):
                scaler.scale(out).backward()

        step(held)
        del held
        gc.collect()
        assert seen() is None
