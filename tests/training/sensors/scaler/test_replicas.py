"""Replicas in one process, and models that are only alike."""

from __future__ import annotations

import copy
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import ampwatch
from tests.stories.stage import gradscaler, half

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.wire.records import Finding


class Replica:
    """A model with an optimizer and a scaler."""

    def __init__(self, model: nn.Module, lr: float = 0.1) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.scaler = gradscaler(64.0)

    def step(self, x: torch.Tensor, *, broken: bool) -> None:
        """Take one step; a broken one has an infinite gradient."""
        self.optimizer.zero_grad()
        with half():
            loss = self.model(x).float().square().mean()
        self.scaler.scale(loss * (1e30 if broken else 1.0)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


def found(replicas: list[Replica], train: Callable[[list[Replica]], None]) -> list[Finding]:
    """Train the replicas, of which the first is watched; return what is said of them."""
    first = replicas[0]
    with ampwatch.monitor(first.model, first.scaler, level="light", serve=False) as watch:
        train(replicas)
    return [f for f in watch.findings if f.kind == "rank_found_inf_mismatch"]


def in_a_loop(replicas: list[Replica]) -> None:
    """One after the other, on one batch; the last skips the fourth step."""
    for number in range(6):
        x = torch.randn(8, 4)
        for replica in replicas:
            replica.step(x, broken=number == 3 and replica is replicas[-1])


def in_threads(replicas: list[Replica]) -> None:
    """All at once, on one batch; the last skips the fourth step."""
    batches = [torch.randn(8, 4) for _ in range(6)]
    together = threading.Barrier(len(replicas))

    def train(replica: Replica) -> None:
        for number, x in enumerate(batches):
            together.wait()
            replica.step(x, broken=number == 3 and replica is replicas[-1])

    others = [threading.Thread(target=train, args=(r,)) for r in replicas[1:]]
    for thread in others:
        thread.start()
    train(replicas[0])
    for thread in others:
        thread.join()


def copies(count: int, **options: Any) -> list[Replica]:
    """Return replicas of one model."""
    model = nn.Linear(4, 2)
    return [Replica(copy.deepcopy(model), **options) for _ in range(count)]


@pytest.mark.parametrize(("train", "count"), [(in_a_loop, 2), (in_threads, 3)])
def test_a_replica_that_skips_alone_is_reported(
    count: int, train: Callable[[list[Replica]], None]
) -> None:
    """With the step, and how many do not skip it."""
    (finding,) = found(copies(count), train)

    assert (finding.where, finding.first_step) == ("optimizer:0", 3)
    assert finding.evidence["common_steps"] == 3
    assert finding.evidence["skipping"] == 1


def test_models_that_began_with_other_weights_are_no_replicas() -> None:
    """Two discriminators."""
    assert found([Replica(nn.Linear(4, 2)), Replica(nn.Linear(4, 2))], in_a_loop) == []


def test_models_that_are_trained_otherwise_are_no_replicas() -> None:
    """One model, two learning rates: a search."""
    model = nn.Linear(4, 2)
    both = [Replica(model, lr=0.1), Replica(copy.deepcopy(model), lr=0.01)]
    assert found(both, in_a_loop) == []


def test_models_that_see_other_data_are_no_replicas() -> None:
    """An ensemble of copies: their weights part with the first step."""

    def train(replicas: list[Replica]) -> None:
        for number in range(6):
            for replica in replicas:
                broken = number == 3 and replica is replicas[-1]
                replica.step(torch.randn(8, 4), broken=broken)

    assert found(copies(3), train) == []
