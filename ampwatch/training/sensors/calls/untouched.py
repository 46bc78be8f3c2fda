"""Gradients that nobody has changed between backward and the step, by their norms."""

from __future__ import annotations

import inspect
import weakref
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from ampwatch.training.hooks.place import before_node
from ampwatch.training.kernels.admission import is_of_floats
from ampwatch.training.kernels.norms import norms_of
from ampwatch.training.private import (
    DECIDES_ON_DEVICE,
    accumulate_hooks,
    tensor_hooks,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor
    from torch.optim import Optimizer

    from ampwatch.guard import Guard
    from ampwatch.training.hooks.place import Handle

MAX_OF_ONE = 4
"""Gradients of one optimizer that are compared: who divides gradients divides all of them."""

MAX_SUSPECTS = 16
"""Gradients of all optimizers that are compared: a hook may step an optimizer for each parameter."""

MAX_CHANGED = 8
"""Comparisons that found changed gradients, after which no more is compared."""

MIN_SCALE = 32.0
"""How many times smaller a learning rate is than the one an optimizer was made with, for it to have been divided by
a loss scale."""


class Untouched:
    """Compares gradients at the step with what backward has left, or has brought to them.

    Versions do not tell it: ``grad.data.div_(scale)`` raises none, and ``p.grad = p.grad / scale`` in a hook leaves a
    tensor as new as backward does. So their norms are compared, once a step has raised the suspicion.

    Args:
        guard: The boundary of the sensor, for what runs in backward.

    Cost:
        Nothing until an optimizer is suspected; then two norms of up to ``MAX_SUSPECTS`` gradients an iteration.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        # By identity of the parameter; whether the step came in the middle of backward.
        self._suspected: dict[int, bool] = {}
        self._norms: dict[int, Tensor] = {}
        self._handles: list[Handle] = []
        self._changed = 0

    def suspect(self, parameters: Sequence[Tensor], *, in_backward: bool) -> bool:
        """Have the next gradients of these parameters compared; return whether they are going to be."""
        if self._changed >= MAX_CHANGED or len(self._suspected) >= MAX_SUSPECTS:
            return False
        self._suspected.update((id(p), in_backward) for p in parameters[:MAX_OF_ONE])
        return True

    def clear(self) -> None:
        """Forget all gradients, and what is suspected."""
        self.end()
        self._norms.clear()
        self._suspected.clear()

    def begin(self, parameters: Iterable[Tensor]) -> None:
        """Begin a backward: listen to the gradients that come to suspects."""
        self.end()
        self._norms.clear()
        for parameter in parameters if any(self._suspected.values()) else ():
            if self._suspected.get(id(parameter)) and parameter.requires_grad:
                self._listen(parameter)

    def _listen(self, parameter: Tensor) -> None:
        key, me = id(parameter), weakref.ref(self)

        def prehook(gradients: Sequence[Any]) -> None:
            # Weak: who keeps the graph keeps the node, and this function.
            untouched = me()
            if untouched is not None and gradients and is_of_floats(gradients[0]):
                untouched._guard.run(untouched._note, [key], [gradients[0]])  # noqa: SLF001 - itself

        # The node that adds to the gradient: hooks of the parameter have run.
        node = torch.autograd.graph.get_gradient_edge(parameter).node
        self._handles.append(before_node(node, prehook))

    def end(self) -> None:
        """End a backward. Idempotent."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def left(self, parameters: Iterable[Tensor]) -> None:
        """Take note of the gradients of suspects as backward has left them."""
        if not self._suspected:
            return
        found = [p for p in parameters if self._suspected.get(id(p)) is False]
        found = [p for p in found if is_of_floats(p.grad)]
        self._note([id(p) for p in found], [p.grad for p in found])

    def _note(self, keys: Sequence[int], gradients: Sequence[Any]) -> None:
        for device in {gradient.device for gradient in gradients}:
            mine = [(k, g) for k, g in zip(keys, gradients, strict=True) if g.device == device]
            norms = norms_of([g for _, g in mine])
            self._norms.update(zip((k for k, _ in mine), norms.unbind(), strict=True))

    def compare(self, parameters: Iterable[Tensor]) -> Tensor | None:
        """Compare gradients with what they were; return ``None`` where nothing was noted.

        Returns:
            On their device two numbers: whether they are as they were, one of them at least not zero, and whether
            one of them is another.
        """
        found = [(id(p), p.grad) for p in parameters if id(p) in self._norms]
        noted = [(key, gradient) for key, gradient in found if is_of_floats(gradient)]
        # What is put together lies on one device. Of a model on several the first one tells as much.
        noted = [one for one in noted if one[1].device == noted[0][1].device]
        if not noted:
            return None
        before = torch.stack([self._norms.pop(key) for key, _ in noted])
        after = norms_of([gradient for _, gradient in noted])
        is_same = before == after
        # Zero stays zero, whatever it is divided by: it says nothing.
        return torch.stack([is_same.all() & (before > 0.0).any(), ~is_same.all()]).float()

    def were_changed(self) -> None:
        """Count a comparison that found changed gradients: the program divides them itself."""
        self._changed += 1
        if self._changed >= MAX_CHANGED:
            self.clear()


def has_hook(parameter: Tensor) -> bool:
    """Whether a hook of the program may change the gradient before it comes to a parameter."""
    return bool(tensor_hooks(parameter))


def may_be_changed(parameter: Tensor) -> bool:
    """Whether a hook of the program may change the gradient before backward ends."""
    return has_hook(parameter) or bool(accumulate_hooks(parameter))


@cache
def _takes_more(step: Any) -> bool:
    """Whether the step of an optimizer takes more than a closure, as far as that is known."""
    try:
        return bool(inspect.signature(step).parameters.keys() - {"self", "closure"})
    except (TypeError, ValueError):  # it is no function of Python
        return True


def may_divide(optimizer: Optimizer, *, by_scaler: bool) -> bool:
    """Whether an optimizer may divide gradients by the loss scale itself, or its learning rate was divided.

    Args:
        optimizer: An optimizer that was stepped.
        by_scaler: Whether a scaler has called it: then the scale may have been handed over.
    """
    # A fused one has the scale left in it, if it was left.
    if getattr(optimizer, DECIDES_ON_DEVICE, False) and (
        by_scaler or getattr(optimizer, "grad_scale", None) is not None
    ):
        return True
    if _takes_more(type(optimizer).step):
        return True
    made_with = optimizer.defaults.get("lr")
    return any(_may_be_divided(group.get("lr"), made_with) for group in optimizer.param_groups)


def _may_be_divided(rate: object, made_with: object) -> bool:
    if rate is None or made_with is None:
        return False
    # A tensor may lie on a device, and is not asked.
    if not isinstance(rate, (int, float)) or not isinstance(made_with, (int, float)):
        return True
    return rate * MIN_SCALE <= made_with
