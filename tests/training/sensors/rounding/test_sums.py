"""Sums in half precision: running ones, those of a loop, and those of gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ampwatch.diagnosis.evidence.rounding import What
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.ops.events import OpPlace
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


class _Solver(torch.autograd.Function):
    """Adds up the gradient of its weight in one backward, in many steps, each a function of the sum and of a term."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, step: Any, dtype: torch.dtype
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.step, ctx.dtype = step, dtype
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        total = torch.zeros_like(weight, dtype=ctx.dtype)
        for _ in range(TERMS):
            total = ctx.step(total, (gradient * x).to(ctx.dtype))
        return gradient * weight, total.to(weight.dtype), None, None


def in_backward(
    step: Callable[[Any, Any], Any], dtype: torch.dtype = torch.bfloat16, calls: int = 1
) -> list[Any]:
    """Return what is seen of ones that a custom function adds up in its backward."""
    weight = torch.rand(8, requires_grad=True)
    listening = Listening(Sums)
    listening.place = OpPlace(Phase.BACKWARD, "ode", is_inside=False)
    x = torch.ones(8)
    losses = [_Solver.apply(x, weight, step, dtype).sum() for _ in range(calls)]  # type: ignore[no-untyped-call]
    with listening:
        torch.stack(losses).sum().backward()
    return listening.seen


@pytest.mark.parametrize(
    ("summed", "add", "what", "where"),
    [
        *((running, add, What.RUNNING_SUM, "loss") for add in WAYS),
        *((in_a_loop, add, What.LOOP_SUM, "pool") for add in WAYS),
        *((in_backward, add, What.GRADIENT_SUM, "ode") for add in WAYS[:2]),
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


class _Hooked:
    """A model whose only weight calls a hook after each of many backward passes.

    Args:
        hook: Called with the parameter and a buffer in bfloat16.
        passes: How many.
        weight: The dtype of the weight.
    """

    def __init__(
        self,
        hook: Callable[[Any, torch.Tensor], Any],
        passes: int,
        weight: torch.dtype = torch.float32,
    ) -> None:
        torch.manual_seed(0)
        model = nn.Linear(8, 4, bias=False).to(weight)
        self.buffer = torch.zeros(4, 8, dtype=torch.bfloat16)
        self.exact = torch.zeros(4, 8, dtype=torch.float64)

        def collect(p: torch.Tensor) -> None:
            assert p.grad is not None
            self.exact += p.grad
            with torch.no_grad():
                hook(p, self.buffer)
            p.grad = None

        model.weight.register_post_accumulate_grad_hook(collect)  # type: ignore[arg-type]
        listening = Listening(Sums, model)
        listening.place = inside("", Phase.BACKWARD)
        with listening:
            for _ in range(passes):
                model(torch.rand(2, 8).to(weight)).float().mean().backward()
        self.seen = listening.seen


@pytest.mark.parametrize(
    ("factor", "collect"),
    [
        (1, lambda p, buffer: buffer.view(-1).add_(p.grad.view(-1).to(buffer.dtype))),
        (4, lambda p, buffer: buffer.add_(p.grad, alpha=0.25)),
        (4, lambda p, buffer: buffer.add_(p.grad / 4)),
    ],
)
def test_a_buffer_of_a_hook_in_which_gradients_in_float32_are_added_up(
    factor: int, collect: Callable[[Any, torch.Tensor], Any]
) -> None:
    """The dtype of the sum is what counts, times whatever factor."""
    hooked = _Hooked(collect, 320)
    (summed,) = hooked.seen
    exact = hooked.exact / factor
    error = float((hooked.buffer.double() - exact).norm() / exact.norm())

    assert (summed.site.where, summed.dtype) == ("param:weight", "bfloat16")
    assert summed.additions == pytest.approx(320, abs=8)
    assert summed.error == pytest.approx(error, rel=0.15)


def _momentum(p: Any, buffer: torch.Tensor) -> None:
    buffer.mul_(0.9).add_(p.grad)
    p.add_(buffer, alpha=-0.1)


def _average(p: Any, buffer: torch.Tensor) -> None:
    buffer.add_((p - buffer) * 0.1)


@pytest.mark.rotating
@pytest.mark.parametrize(
    "hook",
    [
        lambda p, _: p.add_(p.grad, alpha=-1e-3),
        lambda p, _: p.data.add_(-1e-3 * p.grad),
        _momentum,
        _average,
        lambda p, buffer: buffer.add_(p.grad.square()),
        lambda p, buffer: buffer[0].add_(p.grad.norm()),
        lambda p, buffer: buffer.zero_().add_(p.grad),
        lambda p, buffer: buffer.float().add_(p.grad),
    ],
)
def test_other_additions_in_hooks_are_no_sums_of_gradients(
    hook: Callable[[Any, torch.Tensor], Any],
) -> None:
    """Updates of the parameter, momentum, averages of weights, sums of squares, statistics."""
    seen = _Hooked(hook, 64, torch.bfloat16).seen

    assert [s for s in seen if s.additions > 2] == []


@pytest.mark.parametrize("step", WAYS[:2])
def test_each_call_of_a_custom_function_has_a_sum_of_its_own(
    step: Callable[[Any, Any], Any],
) -> None:
    """By the name of the module that has called it."""
    seen = in_backward(step, calls=2)

    assert [s.site.where for s in seen] == ["ode", "ode"]
    # Half of it is 256 terms, from where on one more has no effect.
    assert [s.additions for s in seen] == [pytest.approx(TERMS, abs=8)] * 2
    assert [(s.error, s.lost) for s in seen] == [(pytest.approx(0.5, abs=0.01), 1.0)] * 2


@pytest.mark.rotating
@pytest.mark.parametrize(
    "step",
    [
        lambda total, term: total.float().add_(term),
        lambda total, term: total.mul_(0.5).add_(term),
        lambda total, term: total * 0.5 + term,
        lambda total, term: torch.lerp(total, term, 0.1),
    ],
)
def test_a_recurrence_in_a_custom_function_is_no_sum(step: Callable[[Any, Any], Any]) -> None:
    """Nor is a sum in float32 one that loses anything."""
    assert [s for s in in_backward(step) if s.additions > 2] == []
