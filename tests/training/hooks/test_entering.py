"""Compiled code is heard before it runs for the first time, and where it cannot be, expected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch.nn.modules import module as torch_module

from ampwatch.training.hooks.events import CompiledEntering
from ampwatch.training.hooks.places import graphs
from ampwatch.training.private import SEES_COMPILED
from tests.training.bench import Bench, Heard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

X = torch.ones(2, 3)

needs_entry = pytest.mark.skipif(not SEES_COMPILED, reason="before 2.10 the call has to do")


@pytest.fixture
def heard() -> Iterator[Callable[[], tuple[Bench, list[Any]]]]:
    """Make buses with one who listens; each is removed, and leaves nothing behind."""
    before = (
        getattr(torch_module, "_has_any_global_hook", None),
        torch._dynamo.eval_frame._callback_from_stance,  # type: ignore[attr-defined]
    )
    made: list[Bench] = []

    def make() -> tuple[Bench, list[Any]]:
        bench = Bench()
        ear = Heard(CompiledEntering)
        bench.bus.add(ear)
        bench.install()
        made.append(bench)
        return bench, ear.events

    yield make
    for bench in made:
        bench.remove()
    assert before == (
        getattr(torch_module, "_has_any_global_hook", None),
        torch._dynamo.eval_frame._callback_from_stance,  # type: ignore[attr-defined]
    )


class Inner(nn.Linear):
    """A module that the compiler does not know."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(super().forward(x))


def module() -> Any:
    """A module that is wrapped."""
    return torch.compile(Inner(3, 3), backend="eager")


def in_place() -> Any:
    """A module that stays what it is."""
    inner = Inner(3, 3)
    inner.compile(backend="eager")
    return inner


def function() -> Any:
    """A function."""
    return torch.compile(torch.sin, backend="eager")


@needs_entry
@pytest.mark.parametrize("make", [module, in_place, function], ids=lambda make: make.__name__)
def test_compiled_code_is_heard_when_it_runs_and_once(
    make: Callable[[], Any], heard: Callable[[], tuple[Bench, list[Any]]]
) -> None:
    """Not when torch.compile is called; and whether that was before or after."""
    early = make()
    bench, events = heard()
    late = make()
    told = [(len(events), bench.bus.runs_compiled)]
    for call in (late, early, late):
        call(X)
        told.append((len(events), bench.bus.runs_compiled))

    assert told == [(0, False), (1, True), (1, True), (1, True)]


@needs_entry
def test_what_is_kept_from_the_compiler_is_not_compiled_code(
    heard: Callable[[], tuple[Bench, list[Any]]],
) -> None:
    """PyTorch enters it by the same function."""
    _, events = heard()
    torch.compiler.disable(torch.sin)(X)

    assert events == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("SEES_COMPILED", False), ("ENTERS_COMPILED", "renamed"), ("ASKS_FOR_HOOKS", "renamed")],
    ids=["before 2.10", "entered otherwise", "asked otherwise"],
)
def test_where_it_cannot_be_heard_the_call_of_torch_compile_has_to_do(
    name: str,
    value: object,
    heard: Callable[[], tuple[Bench, list[Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After ``monitor`` it is heard; before, PyTorch still knows the backend."""
    monkeypatch.setattr(graphs, name, value)
    monkeypatch.setattr(graphs, "may_compile", lambda: False)
    bench, events = heard()
    before = (len(events), bench.bus.runs_compiled)
    function()
    after = (len(events), bench.bus.runs_compiled)
    monkeypatch.setattr(graphs, "may_compile", lambda: True)
    later, _ = heard()

    assert (before, after) == ((0, False), (1, True))
    assert later.bus.runs_compiled
