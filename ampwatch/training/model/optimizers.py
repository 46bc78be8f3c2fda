"""The optimizers that belong to the watched training, and their numbers."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from ampwatch.wire.records import MAX_OPTIMIZERS, OTHER_OPTIMIZERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn
    from torch.optim import Optimizer


class OptimizerRegistry:
    """Numbers the optimizers of one training in the order given, else as they are first seen.

    Args:
        given: Optimizers named by the user; if any, no others are taken in except
            through ``admit``.
        models: Without given optimizers, one that holds a parameter of these models
            belongs to the training. Without models every optimizer does, or, with a
            scaler, those that step through it.
        scaled: Whether there is an enabled scaler.
    """

    def __init__(
        self, given: Sequence[Optimizer], models: Sequence[nn.Module], *, scaled: bool = False
    ) -> None:
        self._indices: dict[int, int | None] = {}
        # Keys are identities, which another optimizer may get once this one is freed.
        self._alive: dict[int, weakref.ref[Optimizer]] = {}
        self._count = 0
        self._models = tuple(weakref.ref(model) for model in models)
        self._closed = bool(given) or (scaled and not models)
        for optimizer in given:
            self.admit(optimizer)

    def __len__(self) -> int:
        """Number of optimizers that have been numbered."""
        return self._count

    def admit(self, optimizer: Optimizer) -> int:
        """Return the number of an optimizer that is known to belong here.

        Those beyond ``MAX_OPTIMIZERS`` share the number ``OTHER_OPTIMIZERS``.
        """
        # ``_knows`` in line: this is asked in each step.
        alive = self._alive.get(id(optimizer))
        if alive is not None and alive() is optimizer:
            known = self._indices[id(optimizer)]
            if known is not None:
                return known
        return self._number(optimizer)

    def reference_to(self, key: int) -> weakref.ref[Optimizer] | None:
        """Return the optimizer that has a number by its identity."""
        return self._alive.get(key)

    def index_of(self, optimizer: Optimizer) -> int | None:
        """Return the number of an optimizer, or ``None`` if it is not of this training.

        Cost: one dict lookup; when first seen, one pass over its parameter groups.
        """
        if self._knows(optimizer):
            return self._indices[id(optimizer)]
        if self._closed or not self._owns(optimizer):
            self._remember(optimizer, None)
            return None
        return self._number(optimizer)

    def known(self) -> Iterator[tuple[int, Optimizer]]:
        """Yield the optimizers of this training that are alive, with their numbers."""
        for key, index in list(self._indices.items()):
            optimizer = self._alive[key]()
            if index is not None and optimizer is not None:
                yield index, optimizer

    def _knows(self, optimizer: Optimizer) -> bool:
        reference = self._alive.get(id(optimizer))
        return reference is not None and reference() is optimizer

    def _owns(self, optimizer: Optimizer) -> bool:
        # Asked once per optimizer, and not before it is first seen: sharding replaces parameters.
        models = [m for m in (reference() for reference in self._models) if m is not None]
        ours = {id(p) for m in models for p in m.parameters()}
        theirs = (p for group in optimizer.param_groups for p in group["params"])
        return not self._models or any(id(p) in ours for p in theirs)

    def _number(self, optimizer: Optimizer) -> int:
        index = self._count if self._count < MAX_OPTIMIZERS else OTHER_OPTIMIZERS
        self._count += 1
        self._remember(optimizer, index)
        return index

    def _remember(self, optimizer: Optimizer, index: int | None) -> None:
        self._indices[id(optimizer)] = index
        self._alive[id(optimizer)] = weakref.ref(optimizer)
