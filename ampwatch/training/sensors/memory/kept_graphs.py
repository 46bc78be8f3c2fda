"""Graphs of earlier iterations that are still there, though backward has been through them."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.evidence.memory import Holding, Kept
from ampwatch.training.hooks.sources import user_source

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_MARKED = 64
"""Iterations that are followed; of more each second one."""

MAX_DEPTH = 128
"""Nodes between a loss and the part of its graph that is followed. Where blocks are residual, two nodes are one
block; whatever output is kept, what it was computed of is kept with it."""

MAX_CASTS = 3
"""Nodes between a parameter and the op that takes it: its cast by autocast, its transpose."""

MIN_AGE = 3
"""Iterations that a program may still hold: the names of its loop do, and so does what is read late."""

KEY = "ampwatch"
"""Name of the mark among what PyTorch keeps beside a node for its user (``grad_fn.metadata``)."""

LEAF = "torch::autograd::AccumulateGrad"
"""Name of the nodes of parameters, which live as long as these."""


class _Marked(NamedTuple):
    """An iteration that is followed.

    Attributes:
        step: Its index.
        loss: The loss, if it still lives.
        graph: The mark beside its node.
        part: The mark beside a node that it was computed of; ``None`` without one.
        source: ``file:line`` that has called backward.
    """

    step: int
    loss: weakref.ref[torch.Tensor]
    graph: weakref.ref[set[Any]]
    part: weakref.ref[set[Any]] | None
    source: str

    @property
    def holding(self) -> Holding | None:
        """What of it is still there; ``None`` if nothing is."""
        loss = self.loss()
        if loss is not None and loss.grad_fn is not None:
            return Holding.LOSS
        if self.graph() is not None:
            return Holding.SUM
        return Holding.PART if self.part is not None and self.part() is not None else None


class KeptGraphs:
    """Follows the losses of some iterations, and their graphs, without holding either.

    Beside a node of a graph an empty set is laid, to which a weak reference is kept: it is gone with
    the node. Nothing else tells whether a node is still there, for a running total of losses holds
    their nodes and not the losses.
    """

    def __init__(self) -> None:
        self._marked: list[_Marked] = []

    def mark(self, step: int, loss: object) -> bool:
        """Follow a loss of an iteration; return whether it has a graph.

        Cost: 10 us, and some 2 us a node of the way down its graph, so 0.3 ms for a deep model.
        """
        node = getattr(loss, "grad_fn", None)
        if node is None or not isinstance(loss, torch.Tensor):
            return False
        graph = _marked(node)
        if graph is None:
            return False
        below = _below(node)
        part = None if below is None else _marked(below)
        self._marked.append(_Marked(step, weakref.ref(loss), graph, part, user_source()))
        if len(self._marked) > MAX_MARKED:
            del self._marked[1::2]
        return True

    def let_go(self) -> None:
        """Follow none of those that were marked so far."""
        self._marked.clear()

    def kept(self, step: int) -> Kept | None:
        """Return what is still there of every iteration that was looked at, from some on until ``step``.

        Those of the last ``MIN_AGE`` iterations are left out.

        Cost: 0.2 us an iteration that is followed.
        """
        old = [marked for marked in self._marked if step - marked.step >= MIN_AGE]
        return _of(old) if old else None


def _of(old: Sequence[_Marked]) -> Kept | None:
    """Return what is still there of the newest iterations in a row."""
    newest = old[-1].holding
    if newest is None:
        return None
    count = 0
    for marked in reversed(old):
        if marked.holding is not newest:
            break
        count += 1
    return Kept(newest, count, old[-count].step, old[-1].source)


def _marked(node: Any) -> weakref.ref[set[Any]] | None:
    """Lay a mark beside a node; ``None`` if it has one of another iteration, or takes none."""
    metadata = getattr(node, "metadata", None)
    if not isinstance(metadata, dict) or KEY in metadata:
        return None
    # Of a builtin class: it stays beside a node that outlives the monitor.
    mark: set[Any] = set()
    metadata[KEY] = mark
    return weakref.ref(mark)


def _below(node: Any) -> Any:
    """Return the node farthest from a loss, ``MAX_DEPTH`` at most, on a way that leads to no parameter."""
    found = None
    for _ in range(MAX_DEPTH):
        node = next((one for one, _ in node.next_functions if not _is_of_parameter(one)), None)
        if node is None:
            break
        found = node
    return found


def _is_of_parameter(node: Any) -> bool:
    """Return whether a node is a parameter's, or a cast or view of one; so is ``None``, which needs no gradient."""
    for _ in range(MAX_CASTS + 1):
        if node is None or node.name() == LEAF:
            return True
        inputs = node.next_functions
        if len(inputs) != 1:
            return False
        node = inputs[0][0]
    return False
