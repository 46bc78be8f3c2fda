"""Calls of ``Tensor.backward``: the loss of a training without a scaler, and what graphs show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ampwatch.sensors.compiling import is_traced
from ampwatch.sensors.taps import Listener, listen

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from ampwatch.sensors.guard import Guard
    from ampwatch.sensors.iteration import IterationLedger


class BackwardSensor:
    """Hears of each backward and of each step, and tells those who look at them.

    Args:
        scaler: The watched scaler or ``None``.
        ledger: Takes the losses of a training without a scaler.
        guard: The fail-open boundary.
        before: Called with the root of a backward before it begins.
        after: Called after a backward.
        stepped: Called with an optimizer that has stepped.
    """

    name = "backwards"

    def __init__(
        self,
        scaler: torch.amp.GradScaler | None,
        ledger: IterationLedger,
        guard: Guard,
        *,
        before: Callable[[torch.Tensor], None],
        after: Callable[[], None],
        stepped: Callable[[Optimizer], None],
    ) -> None:
        self._is_scaled = scaler is not None
        self._ledger = ledger
        self._look_at_graph = before
        self._look_at_gradients = after
        self._note_step = stepped
        self._guard = guard
        self._listeners: list[Listener] = []
        self._handle: RemovableHandle | None = None

    def install(self) -> None:
        """Listen to backwards, to steps, and to scalers that nobody has told us of."""
        self._listeners = [
            listen(torch.Tensor, "backward", before=self._before, after=self._after),
        ]
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

    def _before(self, root: Any, _args: Any, _kwargs: Any) -> None:
        self._guard.run(self.before, root)

    def _after(self, _root: Any, _args: Any, _kwargs: Any) -> None:
        self._guard.run(self._look_at_gradients)

    def _step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if not is_traced():
            self._guard.run(self._note_step, optimizer)

    def _scale(self, scaler: Any, _args: Any, _kwargs: Any) -> None:
        # What goes back from here is multiplied by a scale that nobody watches.
        self._is_scaled = self._is_scaled or scaler.is_enabled()

    def before(self, root: torch.Tensor) -> None:
        """A backward from ``root`` is about to begin."""
        if not self._is_scaled:
            self._ledger.losses.add(root)
        self._look_at_graph(root)
