"""Moving averages of weights in half precision, however their update is written."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ampwatch.training.sensors.rounding.averages import WeightAverages
from tests.training.sensors.listening import STEPPED, Listening

if TYPE_CHECKING:
    from collections.abc import Callable

DECAY = 0.999
TAU = 1.0 - DECAY

WAYS: list[Callable[[Any, Any], Any]] = []


def way(update: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Collect a way to write an update: of the average, and the weights in its dtype."""
    WAYS.append(update)
    return update


@way
def multiplied_and_added(mine: Any, theirs: Any) -> None:
    mine.mul_(DECAY).add_(theirs, alpha=TAU)


@way
def interpolated(mine: Any, theirs: Any) -> None:
    mine.lerp_(theirs, TAU)


@way
def a_difference_that_is_subtracted(mine: Any, theirs: Any) -> None:
    difference = mine - theirs
    difference.mul_(TAU)
    mine.sub_(difference)


@way
def a_difference_that_is_added(mine: Any, theirs: Any) -> None:
    mine.add_(theirs - mine, alpha=TAU)


@way
def a_new_value_that_is_copied_from_float32(mine: Any, theirs: Any) -> None:
    mine.copy_(TAU * theirs.float() + mine.float() * DECAY)


@way
def a_new_value_from_lerp(mine: Any, theirs: Any) -> None:
    mine.copy_(torch.lerp(mine.float(), theirs.float(), TAU))


@way
def a_new_value_in_place_of_the_old(mine: Any, theirs: Any) -> None:
    mine.data = mine.data * DECAY + theirs.data * TAU


@way
def lists_multiplied_and_added(mine: Any, theirs: Any) -> None:
    torch._foreach_mul_([mine], DECAY)
    torch._foreach_add_([mine], [theirs], alpha=TAU)


@way
def lists_interpolated(mine: Any, theirs: Any) -> None:
    torch._foreach_lerp_([mine], [theirs], TAU)


@way
def factors_that_are_tensors(mine: Any, theirs: Any) -> None:
    tau = torch.tensor(TAU)
    mine.mul_(1 - tau).add_(tau * theirs)


def _updated(
    update: Callable[[Any, Any], Any],
    dtype: torch.dtype,
    *,
    updates: int = 6,
    source: torch.dtype = torch.bfloat16,
    change: float = 1.5,
) -> list[Any]:
    model = nn.Linear(8, 8, bias=False).to(source)
    average = copy.deepcopy(model).to(dtype)
    listening = Listening(WeightAverages, model)
    listening.place = STEPPED
    with torch.no_grad():
        model.weight.mul_(change)
        for _ in range(updates):
            with listening:
                update(average.weight, model.weight.to(dtype))
    return listening.seen


@pytest.mark.parametrize("source", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("update", WAYS, ids=lambda update: update.__name__)
def test_an_average_in_bfloat16_that_does_not_move_is_seen(
    update: Callable[[Any, Any], Any], source: torch.dtype
) -> None:
    """Every update after the first, of the parameter it follows and with its weight."""
    seen = _updated(update, torch.bfloat16, source=source)

    assert [s.updates for s in seen] == [1, 2, 3, 4, 5]
    assert {s.site.where for s in seen} == {"param:weight"}
    assert all(s.weight == pytest.approx(TAU, rel=1e-3) for s in seen)
    assert all(s.unchanged == s.differing > 60 for s in seen)


@pytest.mark.parametrize("update", WAYS, ids=lambda update: update.__name__)
def test_an_average_in_float32_moves(update: Callable[[Any, Any], Any]) -> None:
    """This is the stuck program in the right dtype."""
    assert _updated(update, torch.float32) == []


@pytest.mark.parametrize("update", WAYS, ids=lambda update: update.__name__)
def test_an_average_that_has_arrived_need_not_move(update: Callable[[Any, Any], Any]) -> None:
    """An average that equals the parameter can lose nothing."""
    assert _updated(update, torch.bfloat16, change=1.0) == []


def test_an_average_that_takes_a_fifth_moves() -> None:
    """In bfloat16 as well."""
    assert _updated(lambda mine, theirs: mine.lerp_(theirs, 0.2), torch.bfloat16) == []


def test_weight_decay_is_no_average() -> None:
    """Decaying weights is none, and adding them to gradients is none."""
    model = nn.Linear(8, 8).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, weight_decay=0.01, momentum=0.9)
    listening = Listening(WeightAverages, model)
    listening.place = STEPPED
    for _ in range(8):
        model(torch.ones(4, 8, dtype=torch.bfloat16)).mean().backward()
        with listening:
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()

    assert listening.seen == []
