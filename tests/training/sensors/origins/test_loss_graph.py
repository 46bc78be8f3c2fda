"""The graph of a loss that is not finite, gone through while ops are observed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from ampwatch.training.ops.mode import OpMode
from ampwatch.training.sensors.origins.loss_graph import loss_trace, steep_op

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def test_a_number_of_the_program_in_the_loss_is_read_under_a_mode() -> None:
    """The graph has saved it as a tensor, which the dispatcher hands to a mode as a number."""
    weight = torch.zeros(2, requires_grad=True)
    before = torch._C._autograd._get_sequence_nr()
    loss = (weight * 0.25).log().sum()
    mode = OpMode(lambda *_: None)
    mode.put_on()
    try:
        trace = loss_trace([loss], before, 5)
    finally:
        mode.take_off()

    assert trace is not None
    assert [origin.op for origin in trace.origins] == ["log"]


def test_what_was_freed_is_not_read() -> None:
    """As FSDP does with the weights it has gathered: the shape stays, the memory is gone."""
    weight = torch.zeros(2, requires_grad=True)
    gathered = torch.ones(2)
    before = torch._C._autograd._get_sequence_nr()
    loss = (weight * gathered).log().sum()
    gathered.untyped_storage().resize_(0)

    trace = loss_trace([loss], before, 5)

    assert trace is not None
    assert [origin.op for origin in trace.origins] == ["log"]


def test_a_divisor_that_is_zero_decides_without_what_is_divided() -> None:
    """A count needs no gradient, and so the graph has saved it alone."""
    weight = torch.ones(2, requires_grad=True)
    before = torch._C._autograd._get_sequence_nr()
    mask = torch.zeros(2)
    loss = (weight * mask).sum() / mask.sum()

    trace = loss_trace([loss], before, 5)

    assert trace is not None
    assert [origin.op for origin in trace.origins] == ["div"]


@pytest.mark.parametrize(
    ("loss_of", "op"),
    [
        (lambda w: (w**2).sum().sqrt(), "sqrt"),
        (lambda w: (w**0.5).sum() / torch.tensor(2.0), "pow"),
        (lambda w: (-w).log1p().exp().mean(), "log1p"),
        (lambda w: (w / w.sum()).sum(), "div"),
        (lambda w: (w**2).sqrt().log().sum(), ""),
        (lambda w: torch.autograd.grad((w**2).sum(), w, create_graph=True)[0].sum().sqrt(), "sqrt"),
        (lambda w: torch.nn.functional.cross_entropy(w[None], torch.tensor([1])), ""),
    ],
)
def test_of_a_graph_that_is_freed_the_one_op_whose_derivative_is_steep_is_known(
    loss_of: Callable[[Tensor], Tensor], op: str
) -> None:
    weight: Any = torch.rand(3).requires_grad_()
    before = torch._C._autograd._get_sequence_nr()
    loss = loss_of(weight)
    torch.autograd.backward(loss)

    assert steep_op(loss, before) == op
    assert steep_op(None, before) == ""
