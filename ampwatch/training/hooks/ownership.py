"""Whose a module or an optimizer is, where several trainings are watched in one process.

PyTorch's hooks and modes tell all monitors of everything. An event belongs to the one whose module or
optimizer it concerns; what concerns nobody's is everybody's.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.optim import Optimizer

    Models = Callable[[], Iterable[nn.Module]]

_open: tuple[Ownership, ...] = ()
"""Of all that are watched now. Replaced as a whole: other threads go through what they have read."""

_changes = 0


class Ownership:
    """What one training owns, beside the others of the process.

    Args:
        models: Returns its models that are still there.
    """

    def __init__(self, models: Models) -> None:
        self.models = models
        self._known: dict[int, tuple[weakref.ref[Optimizer], bool]] = {}
        self._changes = -1

    def begin(self) -> None:
        """Take part from now on."""
        global _open, _changes  # noqa: PLW0603 - of the process
        _open = (*(one for one in _open if one is not self), self)
        _changes += 1

    def end(self) -> None:
        """Take part no more. Idempotent."""
        global _open, _changes  # noqa: PLW0603 - of the process
        _open = tuple(one for one in _open if one is not self)
        _changes += 1
        self._known.clear()

    def modules_of_others(self) -> set[int]:
        """Return the identities of modules that others watch, and this training does not."""
        if not self._has_others():
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

        Cost: nothing to speak of where one training is watched; else a walk over the models once
        for each optimizer.
        """
        if not self._has_others():
            return False
        if isinstance(owner, nn.Module):
            return self._is_of_another(map(id, owner.parameters()))
        if self._changes != _changes:
            self._changes = _changes
            self._known.clear()
        known = self._known.get(id(owner))
        if known is None or known[0]() is not owner:
            ids = [id(p) for group in owner.param_groups for p in group["params"]]
            known = self._known[id(owner)] = weakref.ref(owner), self._is_of_another(ids)
        return known[1]

    def _is_of_another(self, parameters: Iterable[int]) -> bool:
        wanted = set(parameters)
        if not wanted.isdisjoint(_parameters_of(self.models())):
            return False
        return any(
            not wanted.isdisjoint(_parameters_of(other.models()))
            for other in _open
            if other is not self
        )

    def _has_others(self) -> bool:
        return len(_open) > 1 or (bool(_open) and _open[0] is not self)


def _parameters_of(models: Iterable[nn.Module]) -> set[int]:
    return {id(parameter) for model in models for parameter in model.parameters()}
