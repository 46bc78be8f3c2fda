"""Calls of ``optimizer.step``, through PyTorch's own hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from ampwatch.guard import Guard
    from ampwatch.training.iteration.ledger import IterationLedger


class OptimizerStepSensor:
    """Hears of every ``optimizer.step`` in the process and tells the ledger.

    The global hooks are used, not those of an instance: they find optimizers made
    after ``monitor()`` as well and leave no trace in an optimizer that is copied.
    A step within a step (of a wrapper, or of ``super().step()``) is part of it.
    They do not tell skipped steps from applied ones (fused optimizers are called
    for both); the scaler's verdict does.

    Args:
        scaler: The watched scaler or ``None``.
        ledger: Where the observations go.
        guard: The fail-open boundary.
    """

    name = "optimizer_steps"

    def __init__(
        self, scaler: torch.amp.GradScaler | None, ledger: IterationLedger, guard: Guard
    ) -> None:
        self._scaler = scaler
        self._ledger = ledger
        self._guard = guard
        self._handles: list[RemovableHandle] = []
        self._outermost: int | None = None
        self._begun: set[int] = set()

    def install(self) -> None:
        """Register the hooks."""
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]

    def remove(self) -> None:
        """Take the hooks out."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _before(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        # A step that is being compiled must not get our code into its graph.
        if torch.compiler.is_compiling():
            return
        if self._outermost is None or id(optimizer) in self._begun:
            # A step that raised never returned: what begins again is not inside of it.
            self._outermost = id(optimizer)
            self._begun.clear()
        self._begun.add(id(optimizer))

    def _after(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._outermost == id(optimizer) and not torch.compiler.is_compiling():
            self._outermost = None
            self._begun.clear()
            self._guard.run(self.stepped, optimizer)

    def stepped(self, optimizer: Optimizer) -> None:
        """``optimizer.step`` has returned."""
        enabled = self._scaler is not None and self._scaler.is_enabled()
        self._ledger.optimizer_stepped(optimizer, scaler_enabled=enabled)
