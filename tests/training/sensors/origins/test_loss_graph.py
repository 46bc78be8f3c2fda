"""The graph of a loss that is not finite, gone through while ops are observed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ampwatch.training.ops.mode import OpMode
from ampwatch.training.sensors.origins.loss_graph import loss_trace

if TYPE_CHECKING:
    pass


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


def test_a_softmax_of_scores_that_were_not_saved_is_no_origin() -> None:
    """Of finite scores it is finite: what adds a mask to them saves nothing."""
    weight = torch.ones(2, requires_grad=True)
    before = torch._C._autograd._get_sequence_nr()
    scores = weight + torch.tensor([0.0, -torch.inf])

    assert loss_trace([(scores.log_softmax(0) * torch.zeros(2)).sum()], before, 5) is None
