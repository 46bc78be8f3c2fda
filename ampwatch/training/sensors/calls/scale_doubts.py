"""Doubts whether the gradients of a step were all made by one scale."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.diagnosis.evidence.calls import MixedScales
    from ampwatch.training.transfer.scale_log import ScaleLog

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
