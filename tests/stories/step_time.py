"""Trainings whose steps take longer than they have to, in a time that is played: sleeping takes no time here."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.stories.stage import Controls, Program, Stories, backward, half, update

STORIES = Stories()
CONTROLS = Controls()

WIDTH, BATCH = 8, 4

FORWARD, BACKWARD = 0.1, 0.2
"""Time of the parts of a step. Unit: s."""

STEPS = 150
SLOW_STEPS = 1500
"""Iterations: what has become slower is an alarm after five minutes."""


def nothing(_step: int) -> float:
    """Return no time."""
    return 0.0


class Work(torch.autograd.Function):
    """Takes a time in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        """Return the input."""
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Return its gradient, after a time."""
        time.sleep(ctx.seconds)
        return gradients[0], None


class Model(nn.Module):
    """A layer that takes its time.

    Args:
        more: How much longer than usual forward and backward take, by step. Unit: s.
    """

    def __init__(
        self,
        more_forward: Callable[[int], float] = nothing,
        more_backward: Callable[[int], float] = nothing,
    ) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 2)
        self.step = 0
        self.more_forward, self.more_backward = more_forward, more_backward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return two numbers a sample."""
        time.sleep(FORWARD * len(x) / BATCH + self.more_forward(self.step))
        seconds = BACKWARD * len(x) / BATCH + self.more_backward(self.step)
        out: torch.Tensor = Work.apply(self.layer(x), seconds)
        self.step += self.training
        return out


class Images(Dataset[torch.Tensor]):
    """Samples, each of which takes a time to make. Unit: s."""

    def __init__(self, seconds: Callable[[int], float], samples: int = BATCH * 2000) -> None:
        self.seconds, self.samples = seconds, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds(index // BATCH))
        return torch.full((WIDTH,), index / self.samples)


def train(
    batches: Any,
    model: Model | None = None,
    after: Callable[[int], object] = nothing,
    *,
    scaler: Any = None,
    steps: int = STEPS,
) -> Program:
    """Return the documented loop over batches, with something done at the end of each step."""
    model = model or Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    rows = iter(batches)

    def iterate(step: int) -> torch.Tensor:
        batch = next(rows)
        if scaler is None:
            loss = model(batch).square().mean()
        else:
            with half():
                out = model(batch)
            loss = out.float().square().mean()
        backward(scaler, loss)
        update(scaler, optimizer)
        after(step)
        return loss.detach()

    return Program([model], [optimizer], iterate, scaler, steps=steps)


def loader(seconds: Callable[[int], float] = nothing) -> DataLoader[torch.Tensor]:
    """Return the batches of a dataset whose samples take a time to make, by batch. Unit: s."""
    return DataLoader(Images(seconds), BATCH)


@STORIES.tell("input_bound", "step", "")
def pictures_decoded_in_the_loop(*, sick: bool) -> Program:
    """Eight tenths of a second a batch, in the process that trains; the twin has them decoded."""
    return train(loader(lambda _: 0.2 if sick else 0.001))


@STORIES.tell("input_bound", "step", "")
def a_disk_that_others_use_since_a_step(*, sick: bool) -> Program:
    """Steps have become slower as well, which is no second root."""
    return train(loader(lambda batch: 0.2 if sick and batch > 200 else 0.001), steps=600)


@STORIES.tell("step_slower", "step", "")
def clocks_that_are_held_down(*, sick: bool) -> Program:
    """Forward and backward take twice as long since step 200."""
    slow = 1.0 if sick else 0.0
    return train(
        loader(),
        Model(
            lambda step: slow * FORWARD * (step > 200), lambda step: slow * BACKWARD * (step > 200)
        ),
        steps=SLOW_STEPS,
    )


@CONTROLS.add
def evaluations_and_checkpoints() -> Program:
    """Each takes many times as long as a step, and neither is one."""
    model = Model()

    def after(step: int) -> None:
        if step % 50 == 49:
            model.eval()
            with torch.no_grad():
                for _ in range(20):
                    model(torch.ones(BATCH, WIDTH))
            model.train()
            time.sleep(20.0)

    return train(loader(), model, after, steps=SLOW_STEPS)


@CONTROLS.add
def larger_batches_since_a_step() -> Program:
    """Twice as large, and twice as slow."""
    batches = [torch.ones(BATCH, WIDTH)] * 300 + [torch.ones(2 * BATCH, WIDTH)] * SLOW_STEPS
    return train(DataLoader(batches, None), steps=SLOW_STEPS)  # type: ignore[arg-type]


@CONTROLS.add
def steps_that_take_any_time() -> Program:
    """Half as long again by chance, and one in forty five times as long."""
    chance = random.Random(1)
    return train(
        loader(lambda _: 0.02 * chance.random()),
        Model(lambda _: 5 * FORWARD if chance.random() < 1 / 40 else FORWARD * chance.random() / 2),
        steps=SLOW_STEPS,
    )


@CONTROLS.add
def the_first_batch_of_each_epoch() -> Program:
    """Workers are started again, eight tenths of a second in each twenty steps."""
    return train(loader(lambda batch: 0.2 if batch % 20 == 0 else 0.001))


@CONTROLS.add
def batches_from_a_list() -> Program:
    """No loader: nobody waits."""
    return train(cycle([torch.ones(BATCH, WIDTH)]), steps=300)
