"""Replicas: the memory of the parameters, and everything else for themselves."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from torch import nn

from ampwatch.training.replay.kept_calls import ReplayRefusedError
from ampwatch.training.replay.replica import ReplicaModel


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


def test_parameters_share_memory_and_have_gradients_of_their_own() -> None:
    """What is computed with is what the training computes with."""
    original = model()
    replica = ReplicaModel(original, 2**20)
    replica.model(torch.randn(8, 4)).sum().backward()

    for name, parameter in original.named_parameters():
        assert replica.parameters[name].data_ptr() == parameter.data_ptr()
        assert replica.parameters[name].grad is not None
        assert parameter.grad is None


def test_tied_parameters_stay_tied() -> None:
    """One parameter under two names is one in the replica."""
    original = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    original[1].weight = original[0].weight
    replica = ReplicaModel(original, 0)

    assert replica.model[1].weight is replica.model[0].weight


def test_names_are_those_of_the_model_also_where_parts_are_compiled() -> None:
    """What is wrapped is run eagerly, and the wrapper is not part of a name."""
    original = nn.Sequential(torch.compile(model(), backend="eager"), nn.Linear(4, 4))
    replica = ReplicaModel(original, 2**20)

    assert type(replica.model[0]) is nn.Sequential
    assert {replica.names[id(m)] for m in replica.model.modules()} == {"", "0", "0.0", "0.1", "1"}


class Subclass(torch.Tensor):
    pass


def with_data() -> nn.Module:
    made = model()
    made.data = [np.zeros(10_000)]  # type: ignore[assignment]
    return made


def sparse() -> nn.Module:
    made = model()
    made.graph = torch.eye(3).to_sparse()  # type: ignore[assignment]
    return made


def locked() -> nn.Module:
    made = model()
    made.lock = threading.Lock()  # type: ignore[assignment]
    return made


def sharded() -> nn.Module:
    made = nn.Linear(2, 2)
    made.weight = nn.Parameter(torch.ones(2, 2).as_subclass(Subclass))
    return made


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (with_data, "memory_bytes"),
        (sparse, "sparse"),
        (locked, "cannot be copied"),
        (sharded, "Subclass"),
    ],
)
def test_a_model_that_has_no_replica_is_refused_in_words(make: object, why: str) -> None:
    """Its copy would be too large, or cannot be made, or its parameters may not all be here."""
    with pytest.raises(ReplayRefusedError, match=why):
        ReplicaModel(make(), 4000)  # type: ignore[operator]
