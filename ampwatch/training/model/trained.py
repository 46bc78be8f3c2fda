"""The parameters that a training may have gradients of, held weakly."""

from __future__ import annotations

import weakref
from threading import get_ident
from typing import TYPE_CHECKING

from ampwatch.training.model.living import alive
from ampwatch.training.model.names import parameters_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

from ampwatch.training.model.names import Names

REFRESH_EVERY = 64
"""Times they are asked for after which they are looked up again: sharding and adapters replace
them."""

MAX_RESTS = 64
"""Sets of optimizers that stepped together which are remembered."""


class Trained:
    """Parameters of the watched models, and of the optimizers that were met.

    Args:
        names: Names of the parameters of the models.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._parameters: list[weakref.ref[Tensor]] = []
        self._optimizers: dict[int, weakref.ref[Optimizer]] = {}
        self._rests: dict[frozenset[int], list[weakref.ref[Tensor]]] = {}
        self._asked = 0
        self._thread = get_ident()

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread is the one that trains them.

        While another one computes their gradients PyTorch itself does not let them be read.
        """
        return self._thread == get_ident()

    def in_this_thread(self) -> None:
        """The calling thread trains them: it has scaled a loss, or stepped an optimizer."""
        self._thread = get_ident()

    def has_met(self, optimizer: object) -> bool:
        """Whether an optimizer has been taken in."""
        known = self._optimizers.get(id(optimizer))
        return known is not None and known() is optimizer

    def meet(self, optimizer: Optimizer) -> None:
        """Take in an optimizer that the calling thread steps, or is going to."""
        self.in_this_thread()
        if not self.has_met(optimizer):
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)
            self._parameters.clear()
            self._rests.clear()

    def parameters(self) -> list[Tensor]:
        """Return all parameters. Cost: 0.1 us each."""
        if not self._parameters or self._asked % REFRESH_EVERY == 0:
            ours = {id(p): p for _, p in self._names.parameters()}
            for optimizer in alive(self._optimizers.values()):
                ours.update({id(p): p for p in parameters_of(optimizer)})
            self._parameters = [weakref.ref(p) for p in ours.values() if p.requires_grad]
        self._asked += 1
        return alive(self._parameters)

    def others(self, stepped: frozenset[int]) -> list[Tensor]:
        """Return the parameters of optimizers that were met, but are none of these.

        Args:
            stepped: Identities of optimizers that were met.

        Cost: one lookup where these hold all there are.
        """
        if stepped not in self._rests:
            gone: set[int] = set()
            rest: dict[int, Tensor] = {}
            for key, reference in self._optimizers.items():
                optimizer = reference()
                if optimizer is not None and key in stepped:
                    gone.update(map(id, parameters_of(optimizer)))
                elif optimizer is not None:
                    rest.update({id(p): p for p in parameters_of(optimizer) if p.requires_grad})
            if len(self._rests) >= MAX_RESTS:
                self._rests.clear()
            self._rests[stepped] = [weakref.ref(p) for key, p in rest.items() if key not in gone]
        return alive(self._rests[stepped])
