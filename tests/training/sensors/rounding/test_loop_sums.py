"""Sums that a module adds up in half precision, and their error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ampwatch.training.sensors.rounding.loop_sums import COMPARE_EVERY, LoopSums
from tests.training.sensors.listening import Listening, inside

if TYPE_CHECKING:
    from collections.abc import Callable

TERMS = 513


def out_of_place(total: Any, term: Any) -> Any:
    return total + term


def the_other_way_round(total: Any, term: Any) -> Any:
    return term + total


def in_place(total: Any, term: Any) -> Any:
    total += term
    return total


ways = pytest.mark.parametrize(
    "add", [out_of_place, the_other_way_round, in_place], ids=lambda add: add.__name__
)


def _summed(add: Callable[[Any, Any], Any], dtype: torch.dtype, value: float = 1.0) -> Any:
    listening = Listening(LoopSums)
    listening.place = inside("pool")
    term = torch.full((20,), value, dtype=dtype, requires_grad=True) * 1.0
    with listening:
        total = torch.zeros(20, dtype=dtype)
        for _ in range(TERMS):
            total = add(total, term)
    return listening.seen, total


@ways
def test_a_sum_in_half_is_compared_with_one_in_float32(add: Callable[[Any, Any], Any]) -> None:
    """In bfloat16 ones add up to 256, however many they are."""
    seen, total = _summed(add, torch.bfloat16)
    last = seen[-1]

    assert total.unique().tolist() == [256.0]
    assert last.additions == (TERMS // COMPARE_EVERY) * COMPARE_EVERY
    assert last.error == pytest.approx(1.0 - 256.0 / last.additions, rel=0.02)
    assert last.share == pytest.approx(256.0 / last.additions, rel=0.02)
    assert (last.dtype, last.site.where, last.site.phase) == ("bfloat16", "pool", "forward")


@ways
def test_a_sum_that_loses_nothing_is_not_seen(add: Callable[[Any, Any], Any]) -> None:
    """In float32, and in float16 as far as it counts."""
    assert _summed(add, torch.float32)[0] == []
    assert _summed(add, torch.float16)[0] == []


def test_a_residual_stream_is_no_sum_of_one_module() -> None:
    """Each block adds its own branch, small as it may be; without gradients nothing is followed."""
    listening = Listening(LoopSums)
    stream = torch.full((20,), 256.0, dtype=torch.bfloat16, requires_grad=True) * 1.0
    total = torch.zeros(20, dtype=torch.bfloat16)
    with listening:
        for block in range(100):
            listening.place = inside(f"blocks.{block}")
            stream = stream + torch.full((20,), 0.5, dtype=torch.bfloat16)
        for _ in range(TERMS):
            total = total + torch.ones(20, dtype=torch.bfloat16)

    assert listening.seen == []


def test_sums_begin_anew_with_an_iteration_and_keep_no_parameter_from_being_swapped() -> None:
    """Nothing is remembered of the last one."""
    listening = Listening(LoopSums)
    listening.place = inside("pool")
    model = nn.Linear(4, 4).bfloat16()
    for listening.step in range(40):
        with listening:
            total = model.weight + 1.0
            for _ in range(COMPARE_EVERY - 2):
                total = total + model.weight
        torch.utils.swap_tensors(model.weight, nn.Parameter(torch.ones(4, 4).bfloat16()))

    assert listening.seen == []
