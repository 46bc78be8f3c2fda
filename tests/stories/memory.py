"""Trainings whose memory grows until there is none left, and others whose memory grows for a while."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.stories.stage import Controls, Program, Stories, backward, gradscaler, half, update

STORIES = Stories()
CONTROLS = Controls()

STEPS = 1300
"""Iterations: somewhat more than what has to be kept, so that nobody keeps it for a mean."""

WIDTH = 16


def deep(layers: int = 12) -> nn.Sequential:
    """Return a model whose graph has many nodes and little else."""
    return nn.Sequential(
        *[part for _ in range(layers) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    )


def train(
    model: nn.Module,
    forward: Callable[[int], tuple[torch.Tensor, torch.Tensor]],
    after: Callable[[int, torch.Tensor, torch.Tensor], object],
    *,
    scaler: Any = None,
    steps: int = STEPS,
) -> Program:
    """Return a loop around ``forward``, which returns outputs and loss, with something done at its end."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def iterate(step: int) -> torch.Tensor:
        out, loss = forward(step)
        backward(scaler, loss)
        update(scaler, optimizer)
        after(step, out, loss)
        return loss.detach()

    return Program([model], [optimizer], iterate, scaler, steps=steps)


def of(model: nn.Module, batch: int = 4) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
    """Return a forward pass on noise."""

    def forward(_step: int) -> tuple[torch.Tensor, torch.Tensor]:
        out = model(torch.randn(batch, WIDTH))
        return out, out.square().mean()

    return forward


@STORIES.tell("memory_creep", "loss", "forward")
def losses_kept_for_a_curve(*, sick: bool) -> Program:
    """A list of losses, each with the graph that it came of."""
    model = deep()
    curve: list[Any] = []
    return train(
        model,
        of(model),
        lambda _step, _out, loss: curve.append(loss if sick else loss.detach()),
    )


@STORIES.tell("memory_creep", "", "forward")
def outputs_kept_for_the_accuracy_of_an_epoch(*, sick: bool) -> Program:
    """They hold what they are computed of."""
    model = deep(2)
    outputs: list[torch.Tensor] = []
    return train(
        model,
        of(model, 64),
        lambda _step, out, _loss: outputs.append(out if sick else out.argmax(1).sum()),
    )


@STORIES.tell("memory_creep", "loss", "forward")
def metrics_in_dictionaries_with_a_scaler(*, sick: bool) -> Program:
    """What is handed to backward is the scaled loss; what is kept is the loss."""
    model = deep(4)
    history: list[dict[str, Any]] = []

    def forward(_step: int) -> tuple[torch.Tensor, torch.Tensor]:
        with half():
            out = model(torch.randn(8, WIDTH))
        return out, out.float().square().mean()

    def note(step: int, _out: torch.Tensor, loss: torch.Tensor) -> None:
        history.append({"step": step, "loss": loss if sick else loss.item()})

    return train(model, forward, note, scaler=gradscaler(256.0))


@CONTROLS.add
def a_window_of_losses() -> Program:
    """The last 100, with their graphs: it is full after 100 iterations."""
    model = deep()
    window: deque[torch.Tensor] = deque(maxlen=100)
    return train(model, of(model), lambda _step, _out, loss: window.append(loss))


@CONTROLS.add
def a_replay_buffer_that_is_not_full_yet() -> Program:
    """It grows in each iteration, and has no graph."""
    model = deep(2)
    buffer: list[torch.Tensor] = []
    return train(model, of(model, 64), lambda _step, out, _loss: buffer.append(out.detach()))


@CONTROLS.add
def sequences_that_grow_longer() -> Program:
    """A curriculum: what an iteration needs grows, and nothing is kept."""
    model = deep(2)

    def forward(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        out = model(torch.randn(4 + step, WIDTH))
        return out, out.square().mean()

    return train(model, forward, lambda *_: None)


class Batch:
    """An object that refers to itself, and is freed by the collector alone."""

    def __init__(self, out: torch.Tensor, loss: torch.Tensor) -> None:
        self.me = self
        self.out = out
        self.loss = loss


@CONTROLS.add
def objects_in_a_circle() -> Program:
    """Outputs and losses live until Python collects what refers to itself."""
    model = deep(4)
    return train(model, of(model), lambda _step, out, loss: Batch(out, loss))
