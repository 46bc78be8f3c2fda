"""Roots of backward."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

from ampwatch.training.sensors.calls.scaled_roots import PLAIN, UNKNOWN, ScaledRoots, leaves_of


class Case:
    """A scaler at 1024 with two weights."""

    def __init__(self) -> None:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        self.roots = ScaledRoots(self.scaler)
        self.w = torch.ones(3, requires_grad=True)
        self.v = torch.ones(3, requires_grad=True)

    def scale(self, loss: Any) -> Any:
        scaled = self.scaler.scale(loss)
        self.roots.scaled(scaled)
        return scaled

    def kinds(self, *tensors: torch.Tensor, gradients: tuple[Any, ...] = ()) -> list[int]:
        return sorted(branch.kind for branch in self.roots.branches(tensors, gradients))


def test_what_the_scaler_returned_is_scaled_by_the_current_scale() -> None:
    """Alone, weighed, summed, stacked, and after an update by the next number."""
    case = Case()
    one = case.scale(case.w.sum())
    two = case.scale([case.v.sum()])[0]
    before = [case.kinds(r) for r in (one, one / 4, one + two, torch.stack([one, two]).mean())]
    case.roots.updated()
    after = case.kinds(case.scale(case.w.sum()))

    assert before == [[0], [0], [0, 0], [0, 0]]
    assert after == [1]


def test_what_it_did_not_is_plain() -> None:
    """A plain loss is found also beside a scaled one, in one sum or in one call."""
    case = Case()
    scaled = case.scale(case.w.sum())
    plain = 0.1 * case.v.square().sum()

    assert case.kinds(plain) == [PLAIN]
    assert case.kinds(scaled + plain) == [PLAIN, 0]
    assert case.kinds(scaled, plain) == [PLAIN, 0]


@pytest.mark.rotating
@pytest.mark.parametrize("factor", [1024.0, 4096.0, torch.tensor(1024.0)])
def test_what_is_multiplied_by_the_scale_or_the_like_is_not_judged(factor: Any) -> None:
    """A user may do by hand what the scaler does."""
    case = Case()
    case.scale(case.w.sum())

    assert case.kinds(factor * case.w.sum()) == [UNKNOWN]
    assert case.kinds(case.w.sum() * factor) == [UNKNOWN]
    assert case.kinds(case.w.sum() * 100.0) == [PLAIN]


def test_the_scale_itself_is_known_as_a_factor() -> None:
    """Whatever its value."""
    case = Case()
    case.scale(case.w.sum())
    case.scaler.update(3.0)

    assert case.kinds(case.scaler._scale * case.w.sum()) == [UNKNOWN]


def test_after_asking_for_the_scale_any_factor_may_hold_it() -> None:
    """Until the next backward."""
    case = Case()
    case.scale(case.w.sum())
    case.roots.asked = True

    assert case.kinds(case.w.sum() * 37.0) == [UNKNOWN]
    assert case.kinds(case.w.sum() / 2.0**-12) == [UNKNOWN]
    assert case.kinds(case.w.sum()) == [PLAIN]


def test_a_gradient_given_by_hand_may_hold_the_scale() -> None:
    """Of a loss that was scaled anyway it is known."""
    case = Case()
    scaled = case.scale(case.w.sum())
    plain = case.v.sum()
    one = torch.ones(())

    assert case.kinds(scaled, plain, gradients=(one, one)) == [UNKNOWN, 0]


def test_what_is_multiplied_by_zero_is_nothing() -> None:
    """How unused parameters are tied to a loss."""
    case = Case()

    assert case.kinds(case.scale(case.w.sum()) + 0.0 * case.v.sum()) == [0]


def test_a_scaled_loss_below_another_op_is_not_called_plain() -> None:
    """A learnt weight, a clamp, a where."""
    case = Case()
    scaled = case.scale(case.w.sum())
    learnt = torch.tensor(0.5, requires_grad=True)

    assert case.kinds(scaled * learnt.exp()) == [0]
    assert case.kinds(scaled.clamp(max=10.0)) == [UNKNOWN]


def test_no_graph_is_kept_alive() -> None:
    """Numbers are remembered, not nodes."""
    case = Case()
    loss = case.w.sum()
    tensor = weakref.ref(loss)
    case.scale(loss)
    del loss

    assert tensor() is None


def test_the_leaves_of_a_node_are_the_parameters_it_was_computed_from() -> None:
    """All of them, and no other."""
    case = Case()
    both = (case.w * case.v).sum()

    assert leaves_of([both.grad_fn]) == {id(case.w), id(case.v)}
    assert leaves_of([case.w.sum().grad_fn]) == {id(case.w)}
