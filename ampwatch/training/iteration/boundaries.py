"""The safe point: right after an iteration has closed, and outside of every guard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ampwatch.training.hooks.taps import Listener, listen

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.utils.hooks import RemovableHandle

    from ampwatch.training.iteration.ledger import IterationLedger


class BoundarySensor:
    """Tells when an iteration has closed, at the end of the user's call that closed it.

    That is ``scaler.update()``, or without an enabled scaler the ``step`` of the leading
    optimizer. Placed after the sensors of the ledger, so it comes when they are done. In place
    only while somebody wants to know.

    Args:
        scaler: The watched scaler or ``None``.
        ledger: Closes the iterations.
    """

    name = "boundaries"

    def __init__(self, scaler: torch.amp.GradScaler | None, ledger: IterationLedger) -> None:
        self._scaler = scaler
        self._ledger = ledger
        self._seen = 0
        self._wanted: list[Callable[[int], None]] = []
        self._listener: Listener | None = None
        self._handle: RemovableHandle | None = None

    def tell(self, closed: Callable[[int], None]) -> None:
        """Call ``closed(step)`` after each iteration; what it raises reaches the user."""
        self._wanted.append(closed)
        self.install()

    def forget(self, closed: Callable[[int], None]) -> None:
        """Call ``closed`` no more. The hook itself stays: it may be running right now."""
        if closed in self._wanted:
            self._wanted.remove(closed)

    def install(self) -> None:
        """Listen, if somebody wants to know and nothing listens yet."""
        if not self._wanted or self._handle is not None:
            return
        self._seen = self._ledger.step
        self._handle = register_optimizer_step_post_hook(self._look)
        if self._scaler is not None:
            owner = type(self._scaler)
            self._listener = listen(owner, "update", instance=self._scaler, after=self._look)

    def remove(self) -> None:
        """Stop listening."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        if self._listener is not None:
            self._listener.remove()
            self._listener = None
        self._wanted.clear()

    def _look(self, *_: Any) -> None:
        # A step that is being compiled must not get our code into its graph.
        if torch.compiler.is_compiling() or self._ledger.step == self._seen:
            return
        self._seen = self._ledger.step
        for closed in tuple(self._wanted):
            closed(self._seen - 1)
