"""Evidence that gradients were thrown away, and not added to or stepped with, and that they were broken."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from ampwatch.training.kernels.admission import is_ordinary, is_zero_on_host
from ampwatch.training.model.names import parameters_of
from ampwatch.training.transfer.deferred import Deferred

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn
    from torch.optim import Optimizer


class Gradients:
    """Follows the gradient of one parameter from the end of a backward to the next one.

    One stands for all: what throws gradients away, throws all of a training's away.
    """

    def __init__(self) -> None:
        self._parameter: weakref.ref[Tensor] | None = None
        self._identity = 0
        self._is_zeroed = False
        self._was_zero = False

    def forget(self) -> None:
        """Follow none."""
        self._parameter = None

    def note(self, parameters: Iterable[Tensor]) -> bool:
        """Take note of a gradient as backward has left it; return whether there is any.

        Cost: 0.1 us a parameter without a gradient.
        """
        self._is_zeroed = False
        known = None if self._parameter is None else self._parameter()
        if known is None or known.grad is None:
            known = next((p for p in parameters if p.grad is not None), None)
        self._parameter = None if known is None else weakref.ref(known)
        self._identity = 0 if known is None else id(known.grad)
        # What a small scale has flushed to zero was not set to it.
        self._was_zero = (
            known is not None and known.grad is not None and is_zero_on_host(known.grad)
        )
        return known is not None

    def zeroed(self, owner: Optimizer | nn.Module) -> None:
        """Take note that ``zero_grad()`` of an optimizer or of a module was called."""
        followed = None if self._parameter is None else self._parameter()
        if followed is None or self._is_zeroed:
            return
        self._is_zeroed = any(p is followed for p in parameters_of(owner))

    def are_gone(self) -> bool:
        """Whether what backward had left is not there any more."""
        followed = None if self._parameter is None else self._parameter()
        if followed is None:
            return False
        gradient = followed.grad
        return (
            self._is_zeroed
            or gradient is None
            or id(gradient) != self._identity
            or (not self._was_zero and is_zero_on_host(gradient))
        )


class Contents:
    """Asks whether gradients are finite, and reads the answer without waiting for it."""

    def __init__(self) -> None:
        self._deferred = Deferred(slots=1, width=1)
        self._answer: str | None = None

    def ask(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Look at the gradients of parameters, unless an answer is still on its way.

        Args:
            parameters: Names and parameters. Gradients of one device are looked at.

        Cost: a pass over the gradients, and five small ops.
        """
        if self._deferred.flying:
            return
        named = [(name, gradient) for name, p in parameters if is_ordinary(gradient := p.grad)]
        named = [one for one in named if one[1].layout is torch.strided]
        if not named:
            return
        device = named[0][1].device
        names, gradients = zip(*(one for one in named if one[1].device == device), strict=True)

        def arrive(read: list[float]) -> None:
            self._answer = names[int(read[0])] if read[0] >= 0.0 else ""

        with torch.no_grad():
            broken = torch.stack(
                [gradient.isfinite().all() for gradient in gradients]
            ).logical_not()
            self._deferred.read(torch.where(broken.any(), broken.int().argmax(), -1), arrive)

    def answer(self) -> str | None:
        """Return the first parameter whose gradient is not finite, once; ``None`` while it is not known.

        Empty if all are finite.
        """
        self._deferred.poll()
        answer, self._answer = self._answer, None
        return answer
