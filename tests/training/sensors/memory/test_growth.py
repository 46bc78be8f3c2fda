"""Memory is read in few iterations, at every level, and becomes a record and numbers."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import ampwatch
from ampwatch.training.devices import MemoryUse
from ampwatch.training.sensors.memory import growth

if TYPE_CHECKING:
    from collections.abc import Callable

LEVELS = ("light", "standard", "deep")
GIB = 2**30


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Times that the memory of the host was read; it is one byte more each time."""
    seen: list[int] = []

    def read() -> MemoryUse:
        seen.append(len(seen))
        return MemoryUse(GIB + len(seen), 2 * GIB + len(seen))

    monkeypatch.setattr(growth, "host_memory", read)
    monkeypatch.setattr(growth, "host_memory_limit", lambda: 64 * GIB)
    return seen


def train(
    steps: int, after: Callable[[torch.Tensor], object] = lambda _loss: None, **settings: Any
) -> ampwatch.Monitor:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ampwatch.monitor(model, serve=False, **settings) as watch:
        for _ in range(steps):
            loss = model(torch.randn(3, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            after(loss)
    return watch


@pytest.mark.parametrize("level", LEVELS)
def test_what_was_read_last_is_told(level: str, reads: list[int]) -> None:
    """By ``watch.metrics()``, at every level."""
    watch = train(20, level=level)

    metrics = watch.metrics()
    assert metrics["amp/memory_bytes"] == GIB + len(reads)
    assert metrics["amp/memory_peak_bytes"] == 2 * GIB + len(reads)


def test_memory_is_read_ever_more_seldom(reads: list[int]) -> None:
    """In one of four of the first iterations, then in one of some 45: a leak has time to show."""
    train(64, level="light")
    first = len(reads)
    reads.clear()
    train(2000, level="light")
    most = len(reads) - first

    assert first == 16
    assert (2000 - 64) / 64 <= most <= (2000 - 64) / 24


def test_a_system_that_does_not_say_it_is_named_in_the_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is told, and why."""
    monkeypatch.setattr(growth, "host_memory", lambda: None)

    watch = train(8, level="light")

    assert "amp/memory_bytes" not in watch.metrics()
    assert "memory of the host is not read" in watch.report()


def test_a_loss_that_is_let_go_is_let_go() -> None:
    """The sensor holds none of them, and none of their graphs."""
    gone: list[bool] = []
    before: list[Any] = []

    def keep_track(loss: torch.Tensor) -> None:
        if before:
            gone.append(before[0]() is None)
        before[:] = [weakref.ref(loss)]

    train(10, keep_track, level="light")

    # The loop's own name holds each until the next one is computed.
    assert gone == [True] * 9
