"""Gradients that autograd, hooks and custom functions add up in half precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ampwatch.numerics.units.ops import Phase
from ampwatch.training.ops.events import OpPlace
from ampwatch.training.sensors.rounding.gradient_sums import GradientSums
from tests.training.sensors.listening import Listening, inside

if TYPE_CHECKING:
    from collections.abc import Callable


def _summed(
    dtype: torch.dtype, passes: int, *, zeroed_after: int = 0, set_to_none: bool = True
) -> tuple[nn.Module, Listening, torch.Tensor]:
    model = nn.Linear(4, 3, bias=False).to(dtype)
    listening = Listening(GradientSums, model)
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


def test_gradients_in_float32_are_nobodys_business() -> None:
    """Sums in float32 lose nothing that matters."""
    assert _summed(torch.float32, 64)[1].seen == []


def test_what_is_lost_is_counted_element_by_element() -> None:
    """One that is 1000 times smaller than the sum has no effect."""
    model = nn.Linear(2, 1, bias=False).bfloat16()
    listening = Listening(GradientSums, model)
    listening.place = inside("", Phase.BACKWARD)
    with listening:
        for number in range(16):
            x = torch.tensor([[1000.0 if number == 0 else 1.0, 1.0]], dtype=torch.bfloat16)
            model(x).sum().backward()

    assert [(s.additions, s.lost_share) for s in listening.seen] == [(16, 0.5)]


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
        listening = Listening(GradientSums, model)
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


class _Solver(torch.autograd.Function):
    """Adds up the gradient of its weight in one backward, in many steps.

    The last argument makes a sum of the old one and of what is added.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, step: Any) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.step = step
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        total = torch.zeros_like(weight, dtype=torch.bfloat16)
        for _ in range(TERMS):
            total = ctx.step(total, (gradient * x / TERMS).to(torch.bfloat16))
        return gradient * weight, total.to(weight.dtype), None


TERMS = 512


def _solved(step: Callable[[Any, Any], Any], calls: int = 1) -> list[Any]:
    weight = torch.rand(8, requires_grad=True)
    listening = Listening(GradientSums)
    listening.place = OpPlace(Phase.BACKWARD, "ode", is_inside=False)
    x = torch.ones(8)
    losses = [_Solver.apply(x, weight, step).sum() for _ in range(calls)]  # type: ignore[no-untyped-call]
    with listening:
        torch.stack(losses).sum().backward()
    return listening.seen


@pytest.mark.parametrize(
    "step", [lambda total, term: total.add_(term), lambda total, term: total + term]
)
def test_a_sum_within_one_backward_of_a_custom_function(step: Callable[[Any, Any], Any]) -> None:
    """By the name of the module that has called it; each call has a sum of its own."""
    seen = _solved(step, calls=2)

    assert [s.site.where for s in seen] == ["ode", "ode"]
    # Half of it is 256 terms, from where on one more has no effect.
    assert [s.additions for s in seen] == [pytest.approx(TERMS, abs=8)] * 2
    assert [(s.error, s.lost_share) for s in seen] == [(pytest.approx(0.5, abs=0.01), 1.0)] * 2


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
    assert [s for s in _solved(step) if s.additions > 2] == []
