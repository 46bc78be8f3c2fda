"""Calls of ``backward`` inside an autocast region."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ampwatch.diagnosis.api_evidence import AutocastBackward
from ampwatch.sensors.backward import BackwardCall, listen_to_backward
from ampwatch.sensors.callers import users_line
from ampwatch.sensors.dtypes import name_of
from ampwatch.sensors.gradcontents import GradContents, Seen

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.sensors.guard import Guard
    from ampwatch.sensors.taps import Listener
    from ampwatch.sensors.trained import Trained


class AutocastBackwardSensor:
    """Tells of every backward under autocast that fills gradients of this training.

    Args:
        trained: The parameters of this training; without any every backward counts.
        step: Returns the index of the open iteration.
        observe: Takes what was found.
        guard: The fail-open boundary.

    Cost:
        Two questions about autocast a call; a look at every gradient before and after in the
        first calls that are under autocast, until one has filled any.
    """

    name = "autocast_backward"

    def __init__(
        self,
        trained: Trained,
        step: Callable[[], int],
        observe: Callable[[object], None],
        guard: Guard,
    ) -> None:
        self._trained = trained
        self._step = step
        self._observe = observe
        self._guard = guard
        self._listener: Listener | None = None
        self._is_ours = False
        self._dtype = ""
        self._before: list[Seen] = []

    def install(self) -> None:
        """Listen to backward."""
        self._listener = listen_to_backward(self._guard, self.before, self.after)

    def remove(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.remove()
            self._listener = None
        self._before = []

    def before(self, call: BackwardCall) -> None:
        """A backward begins."""
        self._dtype = _dtype_of_region(call.tensors[0] if call.tensors else None)
        if self._dtype and not self._is_ours:
            self._before = GradContents().before(self._trained.parameters())

    def after(self) -> None:
        """It has ended."""
        if not self._dtype:
            return
        before, self._before = self._before, []
        if not self._is_ours:
            self._is_ours = not before or GradContents().after(before, frozenset()) > 0
        if self._is_ours:
            self._observe(AutocastBackward(self._step(), self._dtype, users_line()))


def _dtype_of_region(root: object) -> str:
    """Return what autocast around here asks for, for the device of ``root``; empty if nothing."""
    if not isinstance(root, torch.Tensor):
        return ""
    device = root.device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return ""
    dtype = torch.get_autocast_dtype(device)
    return "" if dtype in (torch.float32, torch.float64) else name_of(dtype)
