"""Gradients that are read where no scaler does it, before an optimizer steps with them."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from ampwatch.training.kernels.admission import is_of_floats
from ampwatch.training.kernels.choice import finite_checks
from ampwatch.training.sensors.origins.reading import AtOnce, adds_up

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from ampwatch.training.model.names import Names
    from ampwatch.training.model.optimizers import OptimizerRegistry

MAX_NUMEL = 4096
"""Elements of a gradient that is read."""


MAX_TOGETHER = 8
"""Optimizers whose gradients are all read before each step. Of more, as a loop has that gives each parameter its own,
an optimizer's own are."""


class Witnesses:
    """Reads two small gradients of each optimizer: of its first parameter that is small, and of its last.

    What a loss has made non-finite is in the last one as a rule, and what a model has made in the first one. In
    host memory alone: elsewhere nothing is read, nor is one of a subclass (``DTensor``).

    Cost: 10 to 15 us a step without a scaler, on the host; nothing with one.
    """

    def __init__(self, registry: OptimizerRegistry, names: Names) -> None:
        self._registry = registry
        self._names = names
        self._values = AtOnce(finite_checks)
        self._of: dict[int, tuple[weakref.ref[Optimizer], list[weakref.ref[Tensor]]]] = {}

    def clear(self) -> None:
        """Forget all optimizers."""
        self._of.clear()

    def know(self, optimizer: Optimizer) -> None:
        """Read gradients of an optimizer from now on. Its own are there."""
        known = self._of.get(id(optimizer))
        if known is None or known[0]() is not optimizer:
            small = [
                parameter
                for _, parameter in self._parameters(optimizer)
                if is_of_floats(parameter.grad)
                and parameter.is_cpu
                and parameter.numel() <= MAX_NUMEL
            ]
            witnesses = [weakref.ref(p) for p in {*small[:1], *small[-1:]}]
            self._of[id(optimizer)] = weakref.ref(optimizer), witnesses

    def are_finite(self, optimizer: Optimizer) -> bool:
        """Whether the gradients that are read are finite, of an optimizer that is known and of the others."""
        values, known = self._values, self._of
        together = len(known) <= MAX_TOGETHER
        for reference, witnesses in known.values() if together else (known[id(optimizer)],):
            for witness in witnesses:
                parameter = witness()
                if parameter is None or reference() is None:
                    self._of.clear()  # some programs make an optimizer for each step
                    return True
                gradient = parameter.grad
                if not is_of_floats(gradient) or values.is_finite_here(gradient):
                    continue
                if values.doubtful((gradient,)):
                    return False
        return True

    def broken(self, optimizer: Optimizer) -> tuple[tuple[str, Tensor], ...]:
        """Return the parameters of an optimizer whose gradients are not finite, with their names.

        Cost: one pass over all of its gradients.
        """
        return tuple(
            (name, parameter)
            for name, parameter in self._parameters(optimizer)
            if is_of_floats(parameter.grad) and not adds_up(parameter.grad)
        )

    def _parameters(self, optimizer: Optimizer) -> list[tuple[str, Tensor]]:
        index = self._registry.index_of(optimizer)
        return [] if index is None else self._names.of_optimizer(optimizer, index)
