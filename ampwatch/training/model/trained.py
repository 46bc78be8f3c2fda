"""Parameters that a training may have gradients of, held weakly."""

from __future__ import annotations

import weakref
from threading import get_ident
from typing import TYPE_CHECKING

from ampwatch.training.model.living import alive
from ampwatch.training.model.names import parameters_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.optim import Optimizer

from ampwatch.training.model.names import Names

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
