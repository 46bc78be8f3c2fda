"""Kept calls: references and no copies, and a word where a call cannot be made again."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from ampwatch.training.replay.kept_calls import (
    MAX_UNCHANGED,
    Draws,
    KeptCall,
    RandomNumbers,
    ReplayRefusedError,
    own_bytes,
)

Pair = namedtuple("Pair", "first second")  # noqa: PYI024 - such a pair comes from old code


@dataclass
class Batch:
    x: torch.Tensor
    name: str = "a"


def kept(*args: Any, **kwargs: Any) -> KeptCall:
    return KeptCall(nn.Identity(), args, kwargs, Draws.now(()))


def test_a_tensor_is_kept_where_it_lies_and_without_its_graph() -> None:
    """The same memory, so nothing is copied; no node, so no graph stays alive."""
    x = torch.ones(3, requires_grad=True) * 2
    (arg,), _ = kept(x).arguments()

    assert arg.data_ptr() == x.data_ptr()
    assert arg.grad_fn is None


@pytest.mark.parametrize(
    "make",
    [
        lambda x: [x, "a"],
        lambda x: (x, None),
        lambda x: {"x": x, "n": 3},
        lambda x: Pair(x, torch.float16),
        lambda x: OrderedDict(x=x),
        Batch,
        lambda x: [({"a": (x,)},)],
    ],
)
def test_what_the_model_does_to_a_container_is_not_seen_by_the_next_replay(make: Any) -> None:
    """Each time the arguments come in containers of their own, of the same types."""
    given = make(torch.ones(2))
    call = kept(given)
    (first,), _ = call.arguments()
    (second,), _ = call.arguments()

    assert type(first) is type(given)
    assert first is not second
    assert first is not given
    assert repr(first) == repr(given)


def test_an_input_that_was_written_to_is_refused() -> None:
    """Through any view of it."""
    x = torch.ones(4)
    call = kept({"x": x})
    x[:2].add_(1)

    with pytest.raises(ReplayRefusedError, match="changed in place") as refusal:
        call.arguments()
    assert not refusal.value.is_lasting


@pytest.mark.parametrize("given", [object(), nn.Linear(2, 2), iter([1]), UserDict(a=1)])
def test_what_may_have_changed_unseen_is_refused(given: object) -> None:
    """Its type is named."""
    with pytest.raises(ReplayRefusedError, match=type(given).__name__):
        kept([given])


@pytest.mark.parametrize(
    "make", [lambda: torch.eye(2).to_sparse(), lambda: torch.eye(2).to_mkldnn()]
)
def test_a_tensor_without_plain_memory_is_refused(make: Any) -> None:
    """Whether it has changed cannot be told in one place."""
    with pytest.raises(ReplayRefusedError, match="sparse"):
        kept(make())


def test_a_tensor_that_lies_there_twice_is_counted_once() -> None:
    """What is kept from being freed is memory, not tensors."""
    x = torch.ones(256)
    call = kept(x, x[:3], y=x.view(16, 16))
    del x

    assert own_bytes([call]).host == 1024


def test_autocast_is_kept_as_it_was() -> None:
    """Where it was on, and in which dtype."""
    with torch.autocast("cpu", dtype=torch.float16):
        inside = kept()

    assert [(a.device_type, a.dtype) for a in inside.autocast] == [("cpu", torch.float16)]
    assert kept().autocast == ()


def test_a_number_that_was_drawn_after_the_last_reading_makes_a_call_uncertain() -> None:
    """It is known again from the call after next on, as every state is read then."""
    numbers = RandomNumbers()
    for _ in range(2 * MAX_UNCHANGED):
        newest = numbers.at_call(())
    while newest.is_certain:
        newest = numbers.at_call(())
    torch.rand(1)

    assert not numbers.knows(newest)
    after = numbers.at_call(())
    assert after.is_certain
    torch.rand(1)
    assert numbers.knows(after)
