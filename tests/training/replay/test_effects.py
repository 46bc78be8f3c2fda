"""Effects that the code of a forward shows: what another call would find changed is no replay's to change."""

from __future__ import annotations

import itertools
import queue
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ampwatch.training.replay.effects import effect_of

GENERATOR = np.random.default_rng(0)
QUEUE: queue.Queue[int] = queue.Queue()
NUMBERS = itertools.count()
TOTAL = 0
TABLE = {"a": 1.0}
SEEN: dict[Any, Any] = {}
ALL: list[Any] = []


class Draws(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * GENERATOR.normal()


class CountsOnItsClass(nn.Module):
    calls = 0

    def forward(self, x: Any) -> Any:
        CountsOnItsClass.calls += 1
        return x


class CountsByType(nn.Module):
    calls = 0

    def forward(self, x: Any) -> Any:
        type(self).calls += 1
        return x


class ChangesAName(nn.Module):
    def forward(self, x: Any) -> Any:
        global TOTAL  # noqa: PLW0603 - what is to be found
        TOTAL += 1
        return x


class Keeps(nn.Module):
    def forward(self, x: Any) -> Any:
        SEEN[x.dtype] = x
        return x


class Appends(nn.Module):
    def forward(self, x: Any) -> Any:
        ALL.append(x)
        return x


def closed() -> type[nn.Module]:
    numbers = itertools.count()

    class Closed(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + next(numbers)

    return Closed


class Waits(nn.Module):
    def forward(self, x: Any) -> Any:
        return x + self.helper()

    def helper(self) -> int:
        return QUEUE.get()


class GoesOn(nn.Module):
    def forward(self, x: Any) -> Any:
        return x + next_number()


def next_number() -> int:
    return next(NUMBERS)


class Counted(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(_ctx: Any, x: Any) -> Any:
        Counted.calls += 1
        return x

    @staticmethod
    def backward(_ctx: Any, gradient: Any) -> Any:
        return gradient


class CallsAFunction(nn.Module):
    def forward(self, x: Any) -> Any:
        return Counted.apply(x)


class Plain(nn.Module):
    """Has a state of its own, and reads what is global."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.seen = 0, []

    def forward(self, x: Any) -> Any:
        self.calls += 1
        self.seen.append(x)
        self.last = nn.functional.gelu(x) * TABLE["a"]
        return torch.relu(self.last)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Draws, "uses 'GENERATOR'"),
        (CountsOnItsClass, "an attribute of a class"),
        (CountsByType, "an attribute of a class"),
        (ChangesAName, "the global name 'TOTAL'"),
        (Waits, "uses 'QUEUE'"),
        (Keeps, "what is in 'SEEN'"),
        (Appends, "what is in 'ALL'"),
        (closed(), "uses 'numbers'"),
        (GoesOn, "uses 'NUMBERS'"),
        (CallsAFunction, "an attribute of a class (Counted.forward)"),
    ],
)
def test_what_a_forward_changes_for_others_is_found(model: type[nn.Module], words: str) -> None:
    """In the forward itself, in its methods and functions, and wherever the module is in a model."""
    assert words in effect_of(nn.Sequential(nn.Linear(2, 2), model()))


def test_what_is_a_models_own_is_no_effect() -> None:
    """Attributes, lists and what only is read; nor is anything in PyTorch's own layers."""
    layer = nn.TransformerEncoderLayer(8, 2)
    assert effect_of(nn.Sequential(Plain(), layer, nn.BatchNorm1d(3), nn.LSTM(2, 2))) == ""
