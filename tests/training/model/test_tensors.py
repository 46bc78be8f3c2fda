"""Flat parameters, as ``FullyShardedDataParallel`` makes them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from ampwatch.training.model.tensors import names_of, parts_of


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
