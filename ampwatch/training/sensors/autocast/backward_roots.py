"""What backward begins at: the losses of a training without a scaler, and what graphs show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ampwatch.training.hooks.compiling import is_traced
from ampwatch.training.hooks.regions import is_in_autocast
from ampwatch.training.hooks.taps import Listener, listen

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from ampwatch.guard import Guard
    from ampwatch.training.hooks.backward import BackwardCall, BackwardTap, Handle
    from ampwatch.training.iteration.ledger import IterationLedger


class Graphs(Protocol):
    """Looks at graphs."""

    @property
    def has_changes(self) -> bool:
        """Whether there is anything to look for."""

    def backward(self, root: torch.Tensor) -> None:
        """A backward from ``root`` is about to begin."""

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped."""


class Gradients(Protocol):
    """Looks at gradients."""

    @property
    def has_regions(self) -> bool:
        """Whether there is anything to look for."""

    def after_backward(self) -> None:
        """A backward has returned."""


class BackwardSensor:
    """Hears of each backward and of each step, and tells those who look at them.

    Args:
        scaler: The watched scaler or ``None``.
        ledger: Takes the losses of a training without a scaler.
        backwards: Hears of backwards.
        guard: The fail-open boundary.
        stale: Looks at the graphs of backwards for casts that are too old.
        compiled: Looks at the gradients that compiled code has left.
    """

    name = "backwards"

    def __init__(
        self,
        scaler: torch.amp.GradScaler | None,
        ledger: IterationLedger,
        backwards: BackwardTap,
        guard: Guard,
        *,
        stale: Graphs,
        compiled: Gradients,
    ) -> None:
        self._is_scaled = scaler is not None
        self._ledger = ledger
        self._backwards = backwards
        self._stale = stale
        self._compiled = compiled
        self._guard = guard
        self._listeners: list[Listener | Handle] = []
        self._handle: RemovableHandle | None = None

    def install(self) -> None:
        """Listen to backwards, to steps, and to scalers that nobody has told us of."""
        self._listeners = [self._backwards.listen(self._guard, self.before, self._wants)]
        if not self._is_scaled:
            self._listeners.append(listen(torch.amp.GradScaler, "scale", before=self._scale))
        self._handle = register_optimizer_step_post_hook(self._step)

    def remove(self) -> None:
        """Stop listening."""
        for listener in self._listeners:
            listener.remove()
        self._listeners.clear()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _wants(self) -> bool:
        return not self._is_scaled or self._stale.has_changes or self._compiled.has_regions

    def _step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if is_in_autocast() and not is_traced():
            self._guard.run(self._stale.stepped, optimizer)

    def _scale(self, scaler: Any, _args: Any, _kwargs: Any) -> None:
        # What goes back from here is multiplied by a scale that nobody watches.
        self._is_scaled = self._is_scaled or scaler.is_enabled()

    def before(self, call: BackwardCall) -> Callable[[], None] | None:
        """A backward is about to begin; return what is to be called when it has ended."""
        if not self._is_scaled:
            self._ledger.losses.add(call.tensors)
        if self._stale.has_changes:
            for root in call.tensors:
                self._stale.backward(root)
        return self._compiled.after_backward if self._compiled.has_regions else None
