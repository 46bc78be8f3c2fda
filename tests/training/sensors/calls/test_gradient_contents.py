"""Contents of gradients, as far as they are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from ampwatch.training.sensors.calls.gradient_contents import GradContents
from ampwatch.training.sensors.calls.scaled_roots import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable


def backward(contents: GradContents, w: torch.Tensor, kind: int) -> int:
    seen = contents.before([w])
    w.sum().backward()
    return contents.after(seen, frozenset({kind}))


def kinds(contents: GradContents, w: torch.Tensor) -> set[int] | None:
    found = contents.of([w])
    return set(found[0][1]) if found else None


def test_what_is_added_up_is_known_together() -> None:
    """Two losses in one gradient."""
    contents = GradContents()
    w = torch.ones(2, requires_grad=True)
    changed = [backward(contents, w, 3), backward(contents, w, 4)]

    assert changed == [1, 1]
    assert kinds(contents, w) == {3, 4}


def test_a_gradient_that_backward_did_not_reach_keeps_its_content() -> None:
    """Another parameter's loss changes nothing."""
    contents = GradContents()
    w = torch.ones(2, requires_grad=True)
    other = torch.ones(2, requires_grad=True)
    backward(contents, w, 3)
    seen = contents.before([w])
    other.sum().backward()

    assert contents.after(seen, frozenset({4})) == 0
    assert kinds(contents, w) == {3}


EMPTIED: list[Callable[[torch.Tensor], object]] = [
    lambda w: setattr(w, "grad", None),
    lambda w: w.grad.zero_(),
    lambda w: w.grad.data.zero_(),
]


@pytest.mark.parametrize("empty", EMPTIED)
def test_what_was_set_to_zero_is_gone(empty: Callable[[torch.Tensor], object]) -> None:
    """Whichever way: also one that leaves no trace in the version."""
    contents = GradContents()
    w = torch.ones(2, requires_grad=True)
    backward(contents, w, 3)
    empty(w)
    backward(contents, w, 4)

    assert kinds(contents, w) == {4}


def test_what_something_else_has_changed_is_not_known() -> None:
    """A division by hand may have been the unscaling."""
    contents = GradContents()
    w = torch.ones(2, requires_grad=True)
    backward(contents, w, 3)
    w.grad.div_(2.0)
    changed = kinds(contents, w)
    backward(contents, w, 4)

    assert changed is None
    assert kinds(contents, w) is None
    assert UNKNOWN in contents.before([w])[0].kinds


def test_clipping_leaves_the_content() -> None:
    """Clipping may take its changes in place, and not one more."""
    contents = GradContents()
    w = torch.ones(2, requires_grad=True)
    backward(contents, w, 3)
    contents.allow_changes([id(w.grad)], 1)
    w.grad.mul_(0.5)
    clipped = kinds(contents, w)
    w.grad.mul_(0.5)

    assert clipped == {3}
    assert kinds(contents, w) is None


def test_a_gradient_that_was_there_before_is_not_known() -> None:
    """Following may begin in the middle of an accumulation."""
    contents = GradContents()
    w = torch.ones(2, requires_grad=True)
    w.sum().backward()
    backward(contents, w, 4)

    assert kinds(contents, w) is None
