"""Doubts whether the gradients of a step were all made by one scale, and the log of scales that settles them."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.training.private import scale_tensor
from ampwatch.training.transfer.readback import is_plain_scalar

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from ampwatch.diagnosis.evidence.calls import MixedScales
    from ampwatch.training.transfer.deferred import Deferred


MAX_SCALES = 256
"""Scales that are remembered; the oldest goes first."""


class ScaleLog:
    """Remembers scales. A scale on a device arrives later, without a sync.

    Args:
        deferred: Reads scales.

    Attributes:
        take_arrived: Takes in the scales that have reached the host. Never waits.
    """

    def __init__(self, deferred: Deferred) -> None:
        self._deferred = deferred
        self.take_arrived = deferred.poll
        self._scales: dict[int, float | None] = {}

    def note(self, number: int, scaler: torch.amp.GradScaler) -> None:
        """Take the scale as it is now, in stream order, if it was not taken yet.

        Cost: one read; of a scale on a device one copy of 4 bytes and an event.
        """
        scale = scale_tensor(scaler)
        if number in self._scales or scale is None:
            return
        if len(self._scales) >= MAX_SCALES:
            self._scales.pop(next(iter(self._scales)))
        self._scales[number] = math.nan
        if not is_plain_scalar(scale):
            return
        self._scales[number], dropped = None, self._deferred.dropped
        self._deferred.read(scale, partial(self._arrive, number))
        if self._deferred.dropped > dropped:
            self._scales[number] = math.nan

    def _arrive(self, number: int, read: list[float]) -> None:
        if number in self._scales:
            self._scales[number] = read[0]

    def of(self, number: int) -> float | None:
        """Return a scale: NaN if it was never taken, ``None`` while it is on its way."""
        return self._scales.get(number, math.nan)


MAX_DOUBTS = 16
"""Steps that may wait for their scales at a time."""


class Doubt(NamedTuple):
    """Gradients whose scales have to be known before anything can be reported of them.

    Attributes:
        numbers: Numbers of the scales they were multiplied by, and of the newest.
        newest: Number of the scale they are divided by.
        observed: Evidence that lacks only the scales.
    """

    numbers: frozenset[int]
    newest: int
    observed: MixedScales


class Doubts:
    """Waits for scales that are on their way from a device.

    Args:
        scales: Log in which the scales arrive.
        observe: Called with gradients that were made by another scale than they are divided by.

    Attributes:
        pending: Doubts that wait.
    """

    def __init__(self, scales: ScaleLog, observe: Callable[[object], None]) -> None:
        self._scales = scales
        self._observe = observe
        self.pending: list[Doubt] = []

    def add(self, doubt: Doubt) -> None:
        """Take in a doubt, and settle it at once if that is possible."""
        self.pending = [*self.pending[-MAX_DOUBTS + 1 :], doubt]
        self.settle()

    def clear(self) -> None:
        """Forget all doubts."""
        self.pending.clear()

    def settle(self) -> None:
        """Report the doubts whose scales are known by now. Never waits."""
        if not self.pending:
            return
        self._scales.take_arrived()
        self.pending = [doubt for doubt in self.pending if not self._is_settled(doubt)]

    def _is_settled(self, doubt: Doubt) -> bool:
        scales = [self._scales.of(number) for number in doubt.numbers]
        newest = self._scales.of(doubt.newest)
        if None in scales or newest is None:
            return False
        # A scale that was never taken is NaN, and compares as false.
        known = [scale for scale in scales if scale is not None and scale > 0.0]
        if known and newest > 0.0:
            other = max(known, key=lambda scale: abs(math.log2(scale / newest)))
            if other != newest:
                self._observe(doubt.observed._replace(scale=newest, other=other))
        return True
