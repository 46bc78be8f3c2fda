"""Optimizers of the training and their numbers, and parameters that ``FullyShardedDataParallel`` makes flat."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from ampwatch.training.model.names import Names
from ampwatch.training.model.optimizers import OptimizerRegistry, Trained
from ampwatch.training.model.tensors import names_of, parts_of
from ampwatch.wire.records import MAX_OPTIMIZERS, OTHER_OPTIMIZERS


def _sgd(module: torch.nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(module.parameters(), lr=0.1)


def test_given_optimizers_are_numbered_in_order_and_no_other_is_taken_in() -> None:
    """The user said which ones."""
    a, b, c = (torch.nn.Linear(1, 1) for _ in range(3))
    first = _sgd(a)
    second = _sgd(b)
    third = _sgd(c)
    registry = OptimizerRegistry([second, first], [a, b, c])

    assert [registry.index_of(o) for o in (first, second, third)] == [1, 0, None]


def test_optimizers_with_parameters_of_the_model_are_found() -> None:
    """Without a list, an optimizer of the watched model is ours and another one is not."""
    model = torch.nn.Linear(1, 1)
    other = torch.nn.Linear(1, 1)
    registry = OptimizerRegistry([], [model])

    assert registry.index_of(_sgd(other)) is None
    assert registry.index_of(_sgd(model)) == 0


def test_without_a_model_every_optimizer_is_ours() -> None:
    """``monitor(None, scaler)`` watches whatever steps."""
    registry = OptimizerRegistry([], [])
    optimizers = [_sgd(torch.nn.Linear(1, 1)) for _ in range(3)]

    assert [registry.index_of(o) for o in optimizers] == [0, 1, 2]
    assert [registry.index_of(o) for o in optimizers] == [0, 1, 2]


def test_optimizers_beyond_the_limit_share_a_number() -> None:
    """One optimizer per parameter is a recipe that people use."""
    registry = OptimizerRegistry([], [])
    optimizers = [_sgd(torch.nn.Linear(1, 1)) for _ in range(MAX_OPTIMIZERS + 2)]
    numbers = [registry.index_of(o) for o in optimizers]

    assert numbers == [*range(MAX_OPTIMIZERS), OTHER_OPTIMIZERS, OTHER_OPTIMIZERS]


def test_a_new_optimizer_at_the_address_of_a_dead_one_gets_its_own_number() -> None:
    """An ``id`` is only good while its object lives."""
    registry = OptimizerRegistry([], [])
    numbers = set()
    for _ in range(4):
        optimizer = _sgd(torch.nn.Linear(1, 1))
        numbers.add(registry.index_of(optimizer))
        del optimizer

    assert numbers == {0, 1, 2, 3}


def test_an_optimizer_that_steps_through_our_scaler_is_admitted_in_any_case() -> None:
    """The scaler is ours, so what it steps is ours."""
    model = torch.nn.Linear(1, 1)
    registry = OptimizerRegistry([_sgd(model)], [model])
    wrapped = _sgd(torch.nn.Linear(1, 1))

    assert registry.admit(wrapped) == 1
    assert registry.index_of(wrapped) == 1


def test_a_model_is_not_asked_for_its_truth() -> None:
    """A compiled one refuses, as it has no length; a list of modules that is empty has one of 0."""
    compiled = torch.compile(torch.nn.Linear(1, 1), backend="eager")
    empty = torch.nn.ModuleList()
    empty.own = torch.nn.Parameter(torch.zeros(1))
    registry = OptimizerRegistry([], [compiled, empty])

    assert [registry.index_of(_sgd(m)) for m in (compiled, empty)] == [0, 1]


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


class Shard(NamedTuple):
    """The part of a parameter that a shard has, as FSDP describes it."""

    in_shard: bool
    offset_in_shard: int | None = None
    numel_in_shard: int | None = None


def flat() -> nn.Parameter:
    """The second of two shards: none of ``a``, the end of ``b``, all of ``c``, and padding."""
    parameter = nn.Parameter(torch.arange(8.0))
    parameter._fqns = ("a", "inner.b", "c")  # type: ignore[attr-defined]
    parameter._shard_param_infos = (Shard(False), Shard(True, 0, 3), Shard(True, 3, 4))  # type: ignore[attr-defined] # noqa: FBT003
    parameter._sharded_size = parameter.size()  # type: ignore[attr-defined]
    return parameter


def test_the_elements_of_a_shard_go_to_the_parameters_that_they_are_of() -> None:
    """With the names that the parameters have without FSDP."""
    parameter = flat()
    gradient = 10.0 * torch.arange(8.0)
    parts = dict(parts_of("block._flat_param", parameter, gradient))

    assert {name: part.tolist() for name, part in parts.items()} == {
        "block.inner.b": [0.0, 10.0, 20.0],
        "block.c": [30.0, 40.0, 50.0, 60.0],
    }
    assert all(
        part.untyped_storage()._cdata == gradient.untyped_storage()._cdata
        for part in parts.values()
    )
    assert names_of("_flat_param", parameter) == ["a", "inner.b", "c"]


def test_while_it_is_gathered_it_is_one_tensor() -> None:
    """Places in the shard are none in the whole."""
    parameter, whole = flat(), torch.zeros(16)

    assert list(parts_of("_flat_param", parameter, whole)) == [("_flat_param", whole)]


def test_another_parameter_is_itself() -> None:
    """With its name, and the very tensor."""
    parameter = nn.Parameter(torch.ones(3))
    ((name, tensor),) = parts_of("fc.weight", parameter, parameter)

    assert name == "fc.weight"
    assert tensor is parameter
    assert names_of("fc.weight", parameter) == ["fc.weight"]
