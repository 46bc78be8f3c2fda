"""The loss of a training without a scaler, and graphs that are handed to the compiler."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import ampwatch
from ampwatch.training.hooks.taps import listen
from ampwatch.wire.records import StepRecord
from tests.stories.stage import gradscaler

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def losses(
    monkeypatch: pytest.MonkeyPatch,
    scaler: Any = None,
    backward: Callable[[torch.Tensor], None] = torch.Tensor.backward,
) -> list[float]:
    """Train for three steps, the scaler not known to ampwatch; return the losses it saw."""
    from ampwatch.training.outlet import Outlet  # noqa: PLC0415 - patched here only

    seen: list[float] = []

    def put(_outlet: Outlet, *records: object) -> None:
        steps = [record for record in records if isinstance(record, StepRecord)]
        seen.extend(step.loss if step.num_losses else math.nan for step in steps)

    monkeypatch.setattr(Outlet, "put", put)
    model = nn.Linear(4, 1)
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with ampwatch.monitor(model, level="light", serve=False):
        for number in range(3):
            loss = model(torch.full((2, 4), float(number))).mean()
            if scaler is None:
                backward(loss)
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
    return seen


def test_without_a_scaler_the_loss_is_what_goes_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of one, inputs of 0, 1 and 2 in four features."""
    assert losses(monkeypatch) == [0.0, 4.0, 8.0]


def test_the_loss_is_what_a_scaler_is_handed_that_was_not_handed_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is watched from its first step on, and not what it has made of the loss."""
    assert losses(monkeypatch, gradscaler(64.0)) == [0.0, 4.0, 8.0]


def test_a_method_of_the_compiler_is_heard_while_it_compiles() -> None:
    """Other methods are not: what is being compiled must not get our code into its graph."""
    heard: list[int] = []

    def captured(_backend: object, args: Any, _kwargs: object) -> None:
        heard.append(len(args[0].graph.nodes))

    listener = listen(torch._TorchCompileWrapper, "__call__", before=captured, also_in_capture=True)
    try:
        torch.compile(lambda x: x * 2 + 1, backend="eager")(torch.ones(3))
    finally:
        listener.remove()

    assert heard == [4]  # input, mul, add, output
