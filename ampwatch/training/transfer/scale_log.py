"""Log of loss scales by number, each known some time after it was in use."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.training.private import scale_tensor
from ampwatch.training.transfer.readback import Readback, is_plain_scalar

if TYPE_CHECKING:
    import torch

    from ampwatch.training.devices import Link

SLOTS = 16
"""Scales that may be on their way from the device at a time."""

KEPT = 256
"""Scales that are remembered; the oldest goes first."""


class ScaleLog:
    """Remembers scales. A scale on a device arrives later, without a sync.

    Args:
        link: Way of scales to the host.
    """

    def __init__(self, link: Link | None = None) -> None:
        self._readback = Readback(SLOTS, 1, link)
        self._scales: dict[int, float | None] = {}

    def prepare(self) -> None:
        """Allocate the pinned memory: pinning is slow and may stop the device."""
        self._readback.prepare()

    def note(self, number: int, scaler: torch.amp.GradScaler) -> None:
        """Take the scale as it is now, in stream order, if it was not taken yet.

        Cost: one read; of a scale on a device one copy of 4 bytes and an event.
        """
        scale = scale_tensor(scaler)
        if number in self._scales or scale is None:
            return
        if len(self._scales) >= KEPT:
            self._scales.pop(next(iter(self._scales)))
        self._scales[number] = math.nan
        if not is_plain_scalar(scale):
            return
        row = self._readback.open()
        if row is None:
            return
        self._scales[number] = None
        self._readback.put(row, 0, scale)
        self._readback.seal(row, number)
        # Nothing came from a device, so nothing has to be waited for.
        if not row.marked:
            self.take_arrived()

    def take_arrived(self) -> None:
        """Take in the scales that have reached the host. Never waits."""
        for values, number in self._readback.arrived():
            self._scales[number] = values[0]

    def of(self, number: int) -> float | None:
        """Return a scale: NaN if it was never taken, ``None`` while it is on its way."""
        return self._scales.get(number, math.nan)
