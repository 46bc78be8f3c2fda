"""The optimizers that belong to the watched training, and their numbers."""

from __future__ import annotations

import weakref
from threading import get_ident
from typing import TYPE_CHECKING

from ampwatch.training.model.living import alive
from ampwatch.training.model.names import Names, parameters_of
from ampwatch.wire.records import MAX_OPTIMIZERS, OTHER_OPTIMIZERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor, nn
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
        ours = {id(p) for m in alive(self._models) for p in m.parameters()}
        return not self._models or any(id(p) in ours for p in parameters_of(optimizer))

    def _number(self, optimizer: Optimizer) -> int:
        index = self._count if self._count < MAX_OPTIMIZERS else OTHER_OPTIMIZERS
        self._count += 1
        self._remember(optimizer, index)
        return index

    def _remember(self, optimizer: Optimizer, index: int | None) -> None:
        self._indices[id(optimizer)] = index
        self._alive[id(optimizer)] = weakref.ref(optimizer)


REFRESH_EVERY = 64
"""Times the parameters are asked for after which they are collected again: sharding and adapters
replace them."""

MAX_RESTS = 64
"""Sets of optimizers that stepped together which are remembered."""


class Trained:
    """Collects parameters of the watched models, and of the optimizers that were met.

    Args:
        names: Names of the parameters of the models.
        optimizers: Optimizers that are known from the start.

    Attributes:
        met: The optimizers that were met and live, by identity.
        thread: Identity of the thread that trains them: it has scaled a loss, or stepped an
            optimizer. While another one computes their gradients PyTorch itself does not let
            them be read.
    """

    def __init__(self, names: Names, optimizers: Sequence[Optimizer] = ()) -> None:
        self._names = names
        self._parameters: list[weakref.ref[Tensor]] = []
        self.met: dict[int, weakref.ref[Optimizer]] = {}
        self._rests: dict[frozenset[int], list[weakref.ref[Tensor]]] = {}
        self._asked = 0
        self.thread = get_ident()
        for optimizer in optimizers:
            self.meet(optimizer)

    def meet(self, optimizer: Optimizer) -> None:
        """Take in an optimizer that the calling thread steps, or is going to."""
        self.thread = get_ident()
        met = self.met
        key = id(optimizer)
        if key not in met:
            # The callback holds the dict and not ``self``; the entry goes with the optimizer, since
            # another one may get its identity.
            met[key] = weakref.ref(optimizer, lambda _: met.pop(key, None))
            self.let_go()

    def let_go(self) -> None:
        """Refer to no parameter until one is asked for again."""
        self._parameters.clear()
        self._rests.clear()

    def parameters(self) -> list[Tensor]:
        """Return all parameters. Cost: 0.1 us each."""
        if not self._parameters or self._asked % REFRESH_EVERY == 0:
            ours = {id(p): p for _, p in self._names.parameters()}
            for optimizer in alive(self.met.values()):
                ours.update({id(p): p for p in parameters_of(optimizer)})
            self._parameters = [weakref.ref(p) for p in ours.values() if p.requires_grad]
        self._asked += 1
        return alive(self._parameters)

    def others(self, stepped: frozenset[int]) -> list[Tensor]:
        """Return the parameters of all met optimizers except those that have stepped.

        Args:
            stepped: Identities of the met optimizers that have stepped.

        Cost: one lookup, once this set of optimizers has been asked for.
        """
        if stepped not in self._rests:
            gone: set[int] = set()
            rest: dict[int, Tensor] = {}
            for key, reference in self.met.items():
                optimizer = reference()
                if optimizer is not None and key in stepped:
                    gone.update(map(id, parameters_of(optimizer)))
                elif optimizer is not None:
                    rest.update({id(p): p for p in parameters_of(optimizer) if p.requires_grad})
            if len(self._rests) >= MAX_RESTS:
                self._rests.clear()
            self._rests[stepped] = [weakref.ref(p) for key, p in rest.items() if key not in gone]
        others = self._rests[stepped]
        return alive(others) if others else []
