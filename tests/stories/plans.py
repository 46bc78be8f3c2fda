"""Trainings of which a precision plan is made, and that leave it or hold it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.stories.stage import PAID, Controls, Program, Stories, backward, update

STORIES = Stories()
CONTROLS = Controls()

ASKED_AT = 60
"""The iteration in which the test asks for the plan: the numbers move after it."""

WIDTH = 64


def _train(
    loss_of: Callable[[nn.Module, torch.Tensor, torch.Tensor, int], torch.Tensor], lr: float = 1e-3
) -> Program:
    layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    rule = torch.randn(WIDTH, 8)

    def iterate(step: int) -> torch.Tensor:
        x = torch.randn(64, WIDTH)
        loss = loss_of(model, x, (x @ rule).argmax(1), step)
        backward(None, loss)
        update(None, optimizer)
        return loss

    return Program([model], [optimizer], iterate, steps=140, settings=PAID)


@STORIES.tell("plan_left", "2", "backward")
def weights_of_samples_that_drift_apart(*, sick: bool) -> Program:
    """Importance weights, as of off-policy learning: without a clamp few samples have all of the gradient."""

    def loss_of(model: nn.Module, x: torch.Tensor, target: torch.Tensor, step: int) -> torch.Tensor:
        ratio = (max(step - ASKED_AT, 0) / 8 * torch.randn(len(x))).exp()
        if not sick:
            ratio = ratio.clamp(0.5, 2)
        return (ratio * cross_entropy(model(x), target, reduction="none")).sum() / ratio.sum()

    return _train(loss_of)


@STORIES.tell("plan_left", "0", "forward")
def a_feature_in_another_unit(*, sick: bool) -> Program:
    """Later files have one feature in nanoseconds: beside it all others become zero. The remedy is a norm."""

    def loss_of(model: nn.Module, x: torch.Tensor, target: torch.Tensor, step: int) -> torch.Tensor:
        x = x.clone()
        if step > ASKED_AT:
            x[:, 5] *= 1e9
        if not sick:
            x = (x - x.mean(0)) / x.std(0)
        return cross_entropy(model(x) / x.detach().abs().amax(), target)

    return _train(loss_of, lr=0.0)


@CONTROLS.add
def gradients_that_vanish_alike() -> Program:
    """By twenty orders of magnitude: a scale of the whole tensor follows, and bfloat16 has the range."""

    def loss_of(model: nn.Module, x: torch.Tensor, target: torch.Tensor, step: int) -> torch.Tensor:
        return cross_entropy(model(x), target) * 2.0 ** (-max(step - ASKED_AT, 0) / 1.2)

    return _train(loss_of)


@CONTROLS.add
def a_training_that_learns() -> Program:
    """Fast, with gradients that become smaller and sparser as it goes."""

    def loss_of(
        model: nn.Module, x: torch.Tensor, target: torch.Tensor, _step: int
    ) -> torch.Tensor:
        return cross_entropy(model(x), target)

    return _train(loss_of, lr=1e-2)
