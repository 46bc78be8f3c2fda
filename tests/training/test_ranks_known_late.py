"""A process group that begins after ``monitor()``: the ranks are said not to be known."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import distributed, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import ampwatch


@pytest.fixture(autouse=True)
def group_ends() -> Iterator[None]:
    """End the group that a test has begun."""
    yield
    if distributed.is_initialized():
        distributed.destroy_process_group()


def begin_group(world_size: int) -> None:
    """Begin a group whose collectives do nothing, of which this is the second rank or the only one."""
    rank = world_size // 2
    distributed.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())


def train(watch: ampwatch.Monitor, model: nn.Module, steps: int = 3) -> None:
    """Train some steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was said of ranks."""
    return [text for text in caplog.messages if "init_process_group" in text]


def test_a_group_that_begins_later_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """With the call to move, and what goes unseen."""
    model = nn.Linear(8, 4)
    watch = ampwatch.monitor(model, level="light", serve=False)
    begin_group(2)
    train(watch, model)

    (sentence,) = said(caplog)
    assert sentence.startswith("this is rank 1 of 2")
    assert "call monitor() after init_process_group()" in sentence


@pytest.mark.parametrize("world_size", [1, 2])
def test_nothing_is_said_where_the_ranks_were_known(
    caplog: pytest.LogCaptureFixture, world_size: int
) -> None:
    """The group is there first, as in all examples of PyTorch."""
    begin_group(world_size)
    model = nn.Linear(8, 4)
    train(ampwatch.monitor(model, level="light", serve=False), model)

    assert said(caplog) == []


def test_nothing_is_said_where_the_launcher_has_said_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By variables of the environment, as torchrun does."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    model = nn.Linear(8, 4)
    watch = ampwatch.monitor(model, level="light", serve=False)
    begin_group(2)
    train(watch, model)

    assert said(caplog) == []
