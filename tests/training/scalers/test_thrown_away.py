"""Gradients that were thrown away: what is read of them, and what is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ampwatch.training.kernels.pending import PENDING
from ampwatch.training.scalers.thrown_away import Gradients


class Collective:
    """One that is under way."""

    def is_completed(self) -> bool:
        return False


def _followed() -> tuple[Gradients, torch.Tensor]:
    parameter = torch.ones(4, requires_grad=True)
    parameter.grad = torch.ones(4)
    gradients = Gradients()
    assert gradients.note([parameter])
    return gradients, parameter


def test_a_gradient_that_is_zeroed_in_place_is_gone() -> None:
    gradients, parameter = _followed()
    assert not gradients.are_gone()
    assert parameter.grad is not None
    parameter.grad.zero_()
    assert gradients.are_gone()


@pytest.mark.parametrize("begins", [0, 2])
def test_a_gradient_whose_memory_was_freed_is_not_read(begins: int) -> None:
    parameter = torch.ones(4, requires_grad=True)
    parameter.grad = torch.ones(8)[begins : begins + 4]
    gradients = Gradients()
    gradients.note([parameter])
    parameter.grad.untyped_storage().resize_(0)
    assert not gradients.are_gone()
    gradients.note([parameter])


def test_a_gradient_that_a_collective_is_to_write_is_not_read() -> None:
    gradients, parameter = _followed()
    assert parameter.grad is not None
    work: Any = Collective()
    parameter.grad.zero_()
    PENDING.begin(work, [parameter.grad])
    try:
        assert not gradients.are_gone()
    finally:
        PENDING.end(work)
    assert gradients.are_gone()
