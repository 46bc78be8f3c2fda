"""Gradients that autograd adds up in half precision."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ampwatch.numerics.units.ops import Phase
from ampwatch.training.sensors.rounding.gradient_sums import GradientSums
from tests.training.sensors.listening import Listening, inside


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_error_is_that_of_a_sum_in_float64(dtype: torch.dtype) -> None:
    """Of the newest comparison of the iteration, at its end, by the name of the parameter."""
    model, listening, exact = _summed(dtype, 640)
    (summed,) = listening.seen
    error = float((model.weight.grad.double() - exact).norm() / exact.norm())

    assert (summed.site.where, summed.site.phase, summed.site.op) == (
        "param:weight",
        "backward",
        "add_",
    )
    assert summed.additions == 640
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
