"""Whose a module, an optimizer or a backward is, where several trainings run in one process.

PyTorch's hooks and modes tell all monitors of everything. An event belongs to the one whose module,
optimizer or graph it concerns; what concerns nobody's is everybody's.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ampwatch.training.kernels.admission import is_dtensor
from ampwatch.training.model.names import parameters_of
from ampwatch.training.private import FLAT_SHARDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.optim import Optimizer

    Models = Callable[[], Iterable[nn.Module]]

MAX_NODES = 8192
"""Nodes of a graph that are gone through; one with more is taken for one's own."""

_open: tuple[Ownership, ...] = ()
"""Of all that are watched now. Replaced as a whole: other threads go through what they have read."""

_changes = 0


class Ownership:
    """What one training owns, beside the others of the process.

    Args:
        models: Returns its models that are still there.

    Attributes:
        optimizers: Returns its optimizers that are known and still there.
        has_others: Whether another training is watched in this process.
        has_company: Whether a training was seen in this process that nobody watches: an optimizer, or
            a scaler of torch's, that is none of this training's as far as is known.
    """

    def __init__(self, models: Models) -> None:
        self.models = models
        self.optimizers: Callable[[], Iterable[Optimizer]] = tuple
        self.has_others = self.has_company = False
        self._ours: set[int] = set()
        self._known: dict[int, tuple[weakref.ref[Optimizer], bool]] = {}
        self._changes = -1

    def begin(self) -> None:
        """Take part from now on."""
        self._change((*(one for one in _open if one is not self), self))

    def end(self) -> None:
        """Take part no more. Idempotent."""
        self._change(tuple(one for one in _open if one is not self))
        self._known.clear()
        self._ours.clear()

    def _change(self, now_open: tuple[Ownership, ...]) -> None:
        global _open, _changes  # noqa: PLW0603 - of the process
        _open = now_open
        _changes += 1
        # Now and not when it is asked for: that is in each step.
        for one in {*now_open, self}:
            one.has_others = any(other is not one for other in now_open)

    def modules_of_others(self) -> set[int]:
        """Return the identities of modules that others watch, and this training does not."""
        if not self.has_others:
            return set()
        mine = {id(module) for model in self.models() for module in model.modules()}
        return {
            id(module)
            for other in _open
            if other is not self
            for model in other.models()
            for module in model.modules()
        } - mine

    def is_of_another(self, owner: Optimizer | nn.Module) -> bool:
        """Whether all of its parameters that are watched are another training's.

        Cost: a walk over the models, once for each optimizer and at each call for a module. Not to
        be asked unless ``has_others``.
        """
        if isinstance(owner, nn.Module):
            return self._is_of_another(map(id, owner.parameters()))
        if self._changes != _changes:
            self._changes = _changes
            self._known.clear()
        known = self._known.get(id(owner))
        if known is None or known[0]() is not owner:
            ids = map(id, parameters_of(owner))
            known = self._known[id(owner)] = weakref.ref(owner), self._is_of_another(ids)
        return known[1]

    @property
    def is_alone(self) -> bool:
        """Whether no other training was seen in this process."""
        return not self.has_company and not self.has_others

    def is_graph_of_another(self, roots: Iterable[Any]) -> bool:
        """Whether the graph behind some tensors leads to parameters, and to none of this training.

        Where that is not known it is not claimed: a graph without parameters (of reentrant
        checkpoints), one of shards (its leaves are parameters that are made for each forward), one
        that is too long, or no model that is known.

        Cost: of a graph of this training as a rule some nodes, of another one 0.5 us a node and 0.3 us
        a parameter. Not to be asked where ``is_alone``.
        """
        leaves = _leaves_behind(roots, self._ours)
        if not leaves:
            return False
        # Collected anew for each graph that seems to be another's: adapters and sharding replace them.
        ours = [p for model in self.models() for p in model.parameters()]
        if not ours:
            return False
        for optimizer in self.optimizers():
            ours += parameters_of(optimizer)
        self._ours = set(map(id, ours))
        if any(id(leaf) in self._ours or hasattr(leaf, FLAT_SHARDS) for leaf in leaves):
            return False
        return not any(map(is_dtensor, ours))

    def _is_of_another(self, parameters: Iterable[int]) -> bool:
        wanted = set(parameters)
        if not wanted.isdisjoint(_parameters_of(self.models())):
            return False
        return any(
            not wanted.isdisjoint(_parameters_of(other.models()))
            for other in _open
            if other is not self
        )


def _leaves_behind(roots: Iterable[Any], ours: set[int]) -> list[nn.Parameter]:
    """Return the parameters that a graph leads to; none if one of them is known to be ours."""
    waiting = [root.grad_fn for root in roots if isinstance(root, torch.Tensor)]
    # The nodes themselves: an identity is given away again once its Python object is freed.
    seen: dict[int, Any] = {}
    leaves: list[nn.Parameter] = []
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in seen:
            continue
        if len(seen) >= MAX_NODES:
            return []
        seen[id(node)] = node
        following = node.next_functions
        waiting += [child for child, _ in following]
        leaf = None if following else getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter):
            if id(leaf) in ours:
                return []
            leaves.append(leaf)
    return leaves


def _parameters_of(models: Iterable[nn.Module]) -> set[int]:
    return {id(parameter) for model in models for parameter in model.parameters()}
