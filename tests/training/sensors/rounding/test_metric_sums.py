"""Running sums in half precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ampwatch.numerics.units.ops import Phase
from ampwatch.training.sensors.rounding.metric_sums import MetricSums
from tests.training.sensors.listening import EVALUATED, STEPPED, Listening, inside


@pytest.fixture
def listening() -> Listening:
    return Listening(MetricSums)


def _in_place(total: Any, loss: Any) -> Any:
    return total.add_(loss)


def _anew(total: Any, loss: Any) -> Any:
    return total + loss


def _the_other_way_round(total: Any, loss: Any) -> Any:
    return loss + total


@pytest.mark.parametrize("add", [_in_place, _anew, _the_other_way_round])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.bfloat16, 256), (torch.float16, 2048)])
def test_each_addition_without_effect_is_seen(
    listening: Listening, add: Any, dtype: torch.dtype, limit: int
) -> None:
    """From the limit of the integers on: there the next one would have none."""
    total = torch.tensor(limit - 4.0, dtype=dtype)
    one = torch.ones((), dtype=dtype)
    for _ in range(10):
        with listening:
            total = add(total, one)

    assert [(s.additions, s.total, s.addend) for s in listening.seen] == [
        (number, limit, 1.0) for number in range(1, 8)
    ]
    assert {(s.site.where, s.site.phase, s.grown) for s in listening.seen} == {
        ("loss", "forward", 2)
    }


def test_counts_of_many_classes_are_sums_if_they_are_added_to_in_place(
    listening: Listening,
) -> None:
    """A matrix of confusions, and one element of it through a view that is made each time."""
    counts = torch.full((300, 300), 256.0, dtype=torch.bfloat16)
    ones = torch.ones_like(counts)
    for _ in range(5):
        with listening:
            counts += ones
    assert [s.additions for s in listening.seen] == [1, 2, 3, 4]

    before = len(listening.seen)
    for _ in range(5):
        with listening:
            counts[7, 8] += 1
    assert [s.additions for s in listening.seen[before:]] == [1, 2, 3, 4]


def test_what_is_set_to_zero_begins_anew(listening: Listening) -> None:
    """By itself or in a list, as metrics are between two epochs."""
    total = torch.tensor(256.0, dtype=torch.bfloat16)
    for reset in (torch.zero_, lambda sum_: torch._foreach_zero_([sum_])):
        with listening:
            total += 1
            reset(total)
            total += 1

    assert listening.seen == []


def test_weights_that_are_updated_by_hand_are_no_sum() -> None:
    """To lose an update is another failure, and has a finding of its own."""
    model = nn.Linear(4, 4, bias=False).bfloat16()
    listening = Listening(MetricSums, model)
    for _ in range(5):
        with listening, torch.no_grad():
            model.weight.data.add_(torch.full((4, 4), 1e-8).bfloat16())

    assert listening.seen == []


def test_what_may_become_a_sum_is_reported_once(listening: Listening) -> None:
    """With the first addition in half precision, long before anything is lost; not in float32."""
    total = torch.zeros((), dtype=torch.bfloat16)
    for dtype in (torch.float32, torch.bfloat16, torch.bfloat16):
        with listening:
            total.to(dtype).add_(1.0) if dtype is torch.float32 else total.add_(1.0)

    assert [suspected.step for suspected in listening.suspected] == [1]
    assert listening.seen == []


@pytest.mark.parametrize(
    ("place", "phase"), [(EVALUATED, "eval"), (STEPPED, "forward"), (inside("seen"), "forward")]
)
def test_where_and_when_it_is_added(listening: Listening, place: Any, phase: str) -> None:
    """After the step of an optimizer it is still a metric."""
    total = torch.tensor(256.0, dtype=torch.bfloat16)
    listening.place = place
    with listening:
        for _ in range(4):
            total += 1

    assert {(s.site.where, s.site.phase) for s in listening.seen} == {
        (place.module or "loss", phase)
    }


def test_zeros_are_no_loss_and_one_element_that_grows_is_enough(listening: Listening) -> None:
    """A counter that is given zeros; one of two classes, of which one is still counted."""
    total = torch.tensor([256.0, 0.0], dtype=torch.bfloat16)
    with listening:
        for _ in range(20):
            total += 0
            total += 1

    assert listening.seen == []


def test_a_sum_that_is_emptied_begins_anew(listening: Listening) -> None:
    """Each epoch has its own."""
    total = torch.zeros((), dtype=torch.bfloat16)
    with listening:
        for _ in range(4):
            total.fill_(256.0)
            for _ in range(4):
                total += 1

    # The first addition after that is not yet known to be one of many.
    assert [s.additions for s in listening.seen] == [1, 2, 3] * 4


def test_additions_that_gradients_flow_through_are_no_sums(listening: Listening) -> None:
    """A residual stream without gradients, and additions in backward, are none either."""
    x = torch.full((8,), 256.0, dtype=torch.bfloat16, requires_grad=True)
    with listening:
        y = x
        for _ in range(10):
            y = y + 1e-3
        listening.place = inside("blocks", Phase.EVAL)
        with torch.no_grad():
            for _ in range(10):
                y = y + 1e-3
        listening.place = inside("", Phase.BACKWARD)
        for _ in range(10):
            y.detach().add_(1e-3)

    assert listening.seen == []


def test_averages_and_optimizers_are_left_to_others(listening: Listening) -> None:
    """A tensor that decays in between is no sum; an optimizer's additions are left to others."""
    weight = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    average = weight.detach().clone()
    optimizer = torch.optim.SGD([weight], lr=1e-6, momentum=0.9, foreach=False)
    weight.grad = torch.ones_like(weight)
    listening.place = STEPPED
    with listening:
        for _ in range(10):
            optimizer.step()
            average.mul_(0.999).add_(weight.detach(), alpha=0.001)

    assert listening.seen == []
