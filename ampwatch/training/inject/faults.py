"""The faults that ``ampwatch.inject`` can plant: each goes on, plants when it is due, comes off."""

from __future__ import annotations

import copy
import math
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ampwatch.training.hooks.compiling import is_traced
from ampwatch.training.hooks.place import (
    Handle,
    after_any_forward_first,
    before_any_step,
    before_node,
)
from ampwatch.training.hooks.taps import listen
from ampwatch.training.model.tensors import tensors_in
from ampwatch.training.private import sparse_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from ampwatch.guard import Guard


class Fault(Protocol):
    """One fault. ``due`` says whether to plant it, and takes note that it was."""

    def install(self, due: Callable[[], bool]) -> None:
        """Place what is needed to plant it; nothing on the model itself."""

    def remove(self) -> None:
        """Take everything off. Idempotent."""


class GradientFault:
    """Sets one element of each parameter's gradient to ``value`` in a backward that is due.

    Hooks on the parameters' nodes of the graph do it, before gradients are accumulated, and so before
    they are reduced over ranks. The parameters are left alone: their copies have no hook.
    """

    def __init__(self, parameters: Sequence[Tensor], value: float, guard: Guard) -> None:
        self._parameters = parameters
        self._value = value
        self._guard = guard
        # The parameter holds its AccumulateGrad node weakly: it lives as long as it is held here, and
        # its hook with it. Unheld, the next forward would make a new node, without the hook.
        self._placed: list[tuple[torch.autograd.graph.Node, Handle]] = []

    def install(self, due: Callable[[], bool]) -> None:
        """Place the hooks."""

        def before(gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            # due() last: asking it counts as planting.
            if is_traced() or not due():
                return None
            return self._guard.run(self._planted, gradients)

        for parameter in self._parameters:
            node = torch.autograd.graph.get_gradient_edge(parameter).node
            self._placed.append((node, before_node(node, before)))

    def remove(self) -> None:
        """Take the hooks off."""
        for _, handle in self._placed:
            handle.remove()
        self._placed.clear()

    def _planted(self, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        # A clone: autograd may hand one tensor to several nodes, as the gradient of an addition, and
        # the others must see what it was.
        gradient = gradients[0].clone()
        values = sparse_values(gradient) if gradient.is_sparse else gradient
        if values.numel():
            values[(0,) * values.dim()] = self._value
        return (gradient, *gradients[1:])


class ActivationFault:
    """Sets the first floating-point tensor of a module's output to ``value`` throughout.

    PyTorch's global forward hook does it, so that nothing is on the module, and ahead of the other
    hooks, so that sensors see it as the module's own. The values are made by ops whose inputs are
    finite, as in the fault that this stands for: a number that the program writes down as infinite is
    taken for meant. The gradient passes unchanged.
    """

    def __init__(self, module: nn.Module, value: float, guard: Guard) -> None:
        self._module = module
        self._value = value
        self._guard = guard
        self._handle: Handle | None = None

    def install(self, due: Callable[[], bool]) -> None:
        """Place the hook."""

        def after(module: nn.Module, _inputs: Any, output: Any) -> Any:
            if module is not self._module or is_traced():
                return None
            # Not in evaluation; a checkpointed forward runs without gradients at first.
            if not (module.training or torch.is_grad_enabled()):
                return None
            found = self._guard.run(_first_floating, output)
            if found is None or not due():
                return None
            # Outside of the guard: what sensors do there is hidden from the op tracer, and
            # these ops have to be seen.
            # A sum and no copy_: autograd goes on through it, and its derivative is 1.
            planted = found + _made_by_ops(found, self._value)
            return self._guard.run(_with, output, found, planted)

        self._handle = after_any_forward_first(after)

    def remove(self) -> None:
        """Take the hook off."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None


def _made_by_ops(like: Tensor, value: float) -> Tensor:
    """Return NaN or infinity in the shape of ``like``, computed from finite numbers."""
    if math.isnan(value):
        zeros = torch.zeros_like(like, requires_grad=False)
        return zeros / zeros
    largest = torch.full_like(like, torch.finfo(like.dtype).max, requires_grad=False)
    return largest * 2.0


def _first_floating(output: Any) -> Tensor | None:
    return next((t for t in tensors_in(output) if t.is_floating_point()), None)


def _with(output: Any, old: Tensor, new: Tensor) -> Any:
    """Return ``output`` with ``new`` in the place of ``old``; the user's own object stays as it is."""
    if output is old:
        return new
    if isinstance(output, (tuple, list)):
        replaced = [_with(part, old, new) for part in output]
        return type(output)(*replaced) if hasattr(output, "_fields") else type(output)(replaced)
    altered: Any
    if isinstance(output, dict):
        altered = copy.copy(output)
        for key, part in output.items():
            if (other := _with(part, old, new)) is not part:
                altered[key] = other
        return altered
    if is_dataclass(output) and not isinstance(output, type):
        altered = copy.copy(output)
        for f in fields(output):
            part = getattr(output, f.name)
            if (other := _with(part, old, new)) is not part:
                # Also where the class is frozen; the copy is nobody's yet.
                object.__setattr__(altered, f.name, other)
        return altered
    return output


class StallFault:
    """Delays the step of the first optimizer by ``seconds`` in each iteration that is due."""

    def __init__(
        self,
        scaler: torch.amp.GradScaler | None,
        seconds: float,
        sleep: Callable[[float], None],
        step: Callable[[], int],
    ) -> None:
        self._scaler = scaler
        self._seconds = seconds
        self._sleep = sleep
        self._step = step
        self._stalled = -1
        self._placed: list[Handle] = []

    def install(self, due: Callable[[], bool]) -> None:
        """Listen to the steps."""

        def before(*_: Any) -> None:
            if not is_traced() and self._stalled != self._step() and due():
                self._stalled = self._step()
                self._sleep(self._seconds)

        if self._scaler is not None and self._scaler.is_enabled():
            owner = type(self._scaler)
            self._placed = [listen(owner, "step", instance=self._scaler, before=before)]
        else:
            self._placed = [before_any_step(before)]

    def remove(self) -> None:
        """Stop listening."""
        for placed in self._placed:
            placed.remove()
        self._placed.clear()
