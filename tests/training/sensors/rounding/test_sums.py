"""Sums in half precision: running ones, those of a loop, and those of gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ampwatch.diagnosis.evidence.rounding import What
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.sensors.rounding.sums import LOOP_EVERY, Sums
from tests.training.sensors.listening import EVALUATED, STEPPED, Listening, inside

if TYPE_CHECKING:
    from collections.abc import Callable

TERMS = 512


@pytest.fixture
def listening() -> Listening:
    return Listening(Sums)


def in_place(total: Any, term: Any) -> Any:
    return total.add_(term)


def out_of_place(total: Any, term: Any) -> Any:
    return total + term


def the_other_way_round(total: Any, term: Any) -> Any:
    return term + total


WAYS = [in_place, out_of_place, the_other_way_round]


def running(add: Callable[[Any, Any], Any], dtype: torch.dtype) -> list[Any]:
    """Return what is seen of ones that are added up without a gradient."""
    listening, total = Listening(Sums), torch.zeros((), dtype=dtype)
    with listening:
        for _ in range(TERMS):
            total = add(total, torch.ones((), dtype=dtype))
    return listening.seen


def in_a_loop(add: Callable[[Any, Any], Any], dtype: torch.dtype) -> list[Any]:
    """Return what is seen of ones that a module adds up, with a gradient."""
    listening = Listening(Sums)
    listening.place = inside("pool")
    term = torch.ones(20, dtype=dtype, requires_grad=True) * 1.0
    with listening:
        total = torch.zeros(20, dtype=dtype)
        for _ in range(TERMS):
            total = add(total, term)
    return listening.seen


@pytest.mark.parametrize(
    ("summed", "add", "what", "where"),
    [
        *((running, add, What.RUNNING_SUM, "loss") for add in WAYS),
        *((in_a_loop, add, What.LOOP_SUM, "pool") for add in WAYS),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_ones_add_up_to_256_in_bfloat16(
    summed: Callable[..., list[Any]], add: Callable[[Any, Any], Any], what: What, where: str
) -> None:
    """However many they are, and whoever adds them: half of 512 are lost. In float32 none are, and nothing is seen."""
    seen = summed(add, torch.bfloat16)
    last = seen[-1]

    assert (last.what, last.site.where, last.dtype) == (what, where, "bfloat16")
    if what is What.RUNNING_SUM:
        # From the limit of the integers on: there the next one would have no effect.
        assert [s.additions for s in seen] == list(range(1, TERMS - 254))
        assert {(s.total, s.grown, s.addend) for s in seen} == {(256.0, 254, 1.0)}
    else:
        assert last.additions == pytest.approx(TERMS, abs=LOOP_EVERY)
        assert last.error == pytest.approx(1.0 - 256.0 / last.additions, rel=0.03)
    assert summed(add, torch.float32) == []
    if what is What.LOOP_SUM:
        assert summed(add, torch.float16) == []  # as far as it counts


# Running sums.


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


def test_weights_that_are_updated_by_hand_are_no_sum() -> None:
    """To lose an update is another failure, and has a finding of its own."""
    model = nn.Linear(4, 4, bias=False).bfloat16()
    listening = Listening(Sums, model)
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


@pytest.mark.parametrize(
    "empty", [lambda sum_: sum_.fill_(256.0), lambda sum_: torch._foreach_copy_([sum_], [sum_ * 1])]
)
def test_a_sum_that_is_written_to_begins_anew(listening: Listening, empty: Any) -> None:
    """By itself or in a list, as metrics are between two epochs, each of which has its own."""
    total = torch.tensor(256.0, dtype=torch.bfloat16)
    with listening:
        for _ in range(4):
            empty(total)
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


# Sums of loops.


def test_a_residual_stream_is_no_sum_of_one_module() -> None:
    """Each block adds its own branch, small as it may be; without gradients nothing is followed."""
    listening = Listening(Sums)
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
    listening = Listening(Sums)
    listening.place = inside("pool")
    model = nn.Linear(4, 4).bfloat16()
    for listening.step in range(40):
        with listening:
            total = model.weight + 1.0
            for _ in range(LOOP_EVERY - 2):
                total = total + model.weight
        torch.utils.swap_tensors(model.weight, nn.Parameter(torch.ones(4, 4).bfloat16()))

    assert listening.seen == []


# Sums of gradients.


def _summed(
    dtype: torch.dtype, passes: int, *, zeroed_after: int = 0, set_to_none: bool = True
) -> tuple[nn.Module, Listening, torch.Tensor]:
    model = nn.Linear(4, 3, bias=False).to(dtype)
    listening = Listening(Sums, model)
    listening.place = inside("", Phase.BACKWARD)
    exact = torch.zeros(3, 4, dtype=torch.float64)
    with listening:
        for number in range(passes):
            if zeroed_after and number == zeroed_after:
                model.zero_grad(set_to_none=set_to_none)
                exact.zero_()
            x = torch.rand(2, 4).to(dtype)
            exact += x.double().mean(0) / 3
            (model(x).float().mean()).backward()
    return model, listening, exact


@pytest.mark.rotating
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_error_is_that_of_a_sum_in_float64(dtype: torch.dtype) -> None:
    """Of the newest comparison of the iteration, at its end, by the name of the parameter."""
    model, listening, exact = _summed(dtype, 480)
    (summed,) = listening.seen
    error = float((model.weight.grad.double() - exact).norm() / exact.norm())

    assert (summed.site.where, summed.site.phase, summed.site.op) == (
        "param:weight",
        "backward",
        "add_",
    )
    assert summed.additions == 480
    assert summed.error == pytest.approx(error, rel=0.1, abs=2e-3)
    assert (summed.error > 0.05) == (dtype is torch.bfloat16)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_gradient_that_is_zeroed_begins_anew(*, set_to_none: bool) -> None:
    """However it is zeroed."""
    model, listening, exact = _summed(torch.bfloat16, 96, zeroed_after=32, set_to_none=set_to_none)
    error = float((model.weight.grad.double() - exact).norm() / exact.norm())

    assert listening.seen[-1].error == pytest.approx(error, abs=5e-3)


def test_what_is_lost_is_counted_element_by_element() -> None:
    """One that is 1000 times smaller than the sum has no effect."""
    model = nn.Linear(2, 1, bias=False).bfloat16()
    listening = Listening(Sums, model)
    listening.place = inside("", Phase.BACKWARD)
    with listening:
        for number in range(16):
            x = torch.tensor([[1000.0 if number == 0 else 1.0, 1.0]], dtype=torch.bfloat16)
            model(x).sum().backward()

    assert [(s.additions, s.lost) for s in listening.seen] == [(16, 0.5)]
