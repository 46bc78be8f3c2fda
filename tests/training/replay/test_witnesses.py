"""Which gradients are read before an optimizer steps without a scaler."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from ampwatch.training.model.names import Names
from ampwatch.training.model.optimizers import OptimizerRegistry
from ampwatch.training.replay.witnesses import MAX_TOGETHER, Witnesses


@pytest.mark.parametrize("num", [1, MAX_TOGETHER, 4 * MAX_TOGETHER])
def test_each_optimizer_sees_its_own_gradient_and_a_few_those_of_all(num: int) -> None:
    """As many steps as parameters, each of which reads all of them, would be the square of them."""
    model = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in range(num)])
    optimizers = [torch.optim.SGD([parameter]) for parameter in model]
    witnesses = Witnesses(OptimizerRegistry([], [model]), Names([model]))
    for parameter, optimizer in zip(model, optimizers, strict=True):
        parameter.grad = torch.ones(2)
        witnesses.know(optimizer)

    def seen(bad: int) -> list[bool]:
        model[bad].grad = torch.tensor([1.0, math.nan])
        found = [not witnesses.are_finite(optimizer) for optimizer in optimizers]
        model[bad].grad = torch.ones(2)
        return found

    everybody = num <= MAX_TOGETHER
    for bad in range(num):
        assert seen(bad) == [everybody or index == bad for index in range(num)]
    assert all(map(witnesses.are_finite, optimizers))
