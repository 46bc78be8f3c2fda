"""Losses of a training without a scaler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.training.hooks.sensor import Sensor

if TYPE_CHECKING:
    from ampwatch.training.hooks.events import BackwardBegan, Scaled
    from ampwatch.training.iteration.context import Context


class RootLosses(Sensor):
    """Takes the roots of backward for losses, where no scaler multiplies them.

    With a watched scaler, enabled or not, the ledger takes the losses that are handed to
    ``scaler.scale``. Once a scaler that is not watched is used, roots are multiples of losses.

    Args:
        context: Shared parts of the training, without a scaler.
    """

    name = "losses"
    any_scaler = True

    def __init__(self, context: Context) -> None:
        self._losses = context.losses

    def scaled(self, event: Scaled) -> None:
        """Take note of a scaler that is not watched."""
        # Nothing wakes this sensor again: the scaler may be used in any later iteration.
        self.is_dormant = event.scaler.is_enabled()

    def backward_began(self, event: BackwardBegan) -> None:
        """Take the losses."""
        self._losses.add(event.tensors)
