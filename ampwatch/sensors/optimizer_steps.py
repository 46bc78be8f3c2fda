"""Optimizer steps that are really taken, through PyTorch's own hook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from ampwatch.sensors.guard import Guard
    from ampwatch.sensors.iteration import IterationLedger


class OptimizerStepSensor:
    """Hears of every ``optimizer.step`` in the process and tells the ledger.

    The global hook is used, not the one of an instance: it finds optimizers made
    after ``monitor()`` as well and leaves no trace in an optimizer that is copied.
    It does not tell skipped steps from applied ones (fused optimizers are called
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
        self._handle: RemovableHandle | None = None

    def install(self) -> None:
        """Register the hook."""
        self._handle = register_optimizer_step_post_hook(self._hook)

    def remove(self) -> None:
        """Take the hook out."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _hook(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        # A step that is being compiled must not get our code into its graph.
        if not torch.compiler.is_compiling():
            self._guard.run(self.stepped, optimizer)

    def stepped(self, optimizer: Optimizer) -> None:
        """``optimizer.step`` has returned."""
        enabled = self._scaler is not None and self._scaler.is_enabled()
        self._ledger.optimizer_stepped(optimizer, scaler_enabled=enabled)
