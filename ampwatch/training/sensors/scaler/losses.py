"""Losses of a training without a scaler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.scalers.factors import factor_at_root

if TYPE_CHECKING:
    from ampwatch.training.hooks.events import BackwardBegan, Scaled
    from ampwatch.training.iteration.context import Context


class RootLosses(Sensor):
    """Takes the roots of backward for losses, where no scaler multiplies them.

    With a watched scaler, enabled or not, the ledger takes the losses that are handed to
    ``scaler.scale``. A root that autograd knows to be a loss times a likely scale is divided by it,
    if the scale is known to be one; once a scaler of torch's that is not watched is used, roots are
    multiples of losses, and what it is handed is taken.

    Args:
        context: Shared parts of the training, without a scaler.
    """

    name = "losses"
    any_scaler = True
    waking = frozenset({"scaled"})

    def __init__(self, context: Context) -> None:
        self._losses = context.losses
        self._bus = context.bus

    def scaled(self, event: Scaled) -> None:
        """Take the loss that is handed to a scaler that is not watched."""
        if event.scaler.is_enabled():
            # For good: the scaler may be used in any later iteration.
            self.is_dormant = True
            self._losses.add(event.outputs)

    def backward_began(self, event: BackwardBegan) -> None:
        """Take the losses."""
        bus = self._bus
        scale = None
        if bus.infers_scale or bus.loss_scaler is not None:
            scale = factor_at_root(event.tensors, ())
        if scale is None:
            self._losses.add(event.tensors)
        # What is infinite in float16 need not have been so before it was scaled.
        elif all(getattr(t, "dtype", None) is not torch.float16 for t in event.tensors):
            self._losses.add(event.tensors, divisor=scale)
