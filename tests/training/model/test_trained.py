"""Parameters that may have gradients that wait for a step."""

from __future__ import annotations

import torch
from torch import nn

from ampwatch.training.model.names import Names
from ampwatch.training.model.trained import Trained


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1)


def test_only_what_an_optimizer_holds_can_wait_for_its_step() -> None:
    """A backbone that nobody has frozen keeps its gradients for ever, and nobody waits for them."""
    backbone, head, other = (nn.Linear(2, 2) for _ in range(3))
    model = nn.Sequential(backbone, head, other)
    trained = Trained(Names([model]))
    first = sgd(head)
    second = sgd(other)
    trained.meet(first)
    assert trained.others(frozenset({id(first)})) == []
    trained.meet(second)
    assert set(trained.others(frozenset({id(first)}))) == set(other.parameters())
    assert set(trained.others(frozenset())) == {*head.parameters(), *other.parameters()}
    assert set(trained.parameters()) == set(model.parameters())


def test_a_parameter_of_two_optimizers_waits_for_neither_once_one_has_stepped() -> None:
    """A gradient that was stepped with has been used."""
    layer = nn.Linear(2, 2)
    trained = Trained(Names([layer]))
    first = sgd(layer)
    second = sgd(layer)
    trained.meet(first)
    trained.meet(second)
    assert trained.others(frozenset({id(first)})) == []
