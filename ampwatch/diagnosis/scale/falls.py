"""Falls of a loss scale: how deep, and how far it has come back since."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampwatch.diagnosis.evidence.iteration import Iteration
    from ampwatch.wire.records import Finding

QUIET_GAPS = 4.0
"""Mean gaps between two skips after which a fall without another one is over: chance alone makes
so long a gap once in 50."""

MIN_QUIET = 8
"""Steps that it takes at least."""

COME_BACK = 2.0**-4
"""Ratio to the scale before a fall from which the scale has come back: as much as a fall has to be
before it is one."""


class Fall:
    """A fall of the loss scale that a finding is about.

    Args:
        finding: The finding.
        before: The scale before its first skip.

    Attributes:
        finding: The finding.
        before: The scale before its first skip.
        after: The scale after its newest skip.
        reached: The largest scale that steps were taken with since.
        reached_step: The iteration after which the scale was as large first.
        is_over: Whether it was said that it is.
        was_skipped: Whether a step was skipped since, if only by the scaler's search.
    """

    def __init__(self, finding: Finding, before: float) -> None:
        self.finding = finding
        self.before = before
        self.after = math.nan
        self.reached = 0.0
        self.reached_step = -1
        self.is_over = False
        self.was_skipped = False

    def goes_on(self, scale: float) -> None:
        """Take in another skip of it.

        Args:
            scale: The scale after it.
        """
        self.after = scale
        self.reached, self.reached_step = 0.0, -1
        self.is_over = self.was_skipped = False

    def follow(self, iteration: Iteration, *, skipped: bool) -> bool:
        """Take in an iteration without a skip of it; return whether there is more to say."""
        self.was_skipped |= skipped
        news = not self.is_over and self._is_quiet(iteration.step)
        self.is_over |= news
        # A search that goes up and down says no more than the first time that it was as high.
        if not skipped and iteration.loss_scale > max(self.reached, self.after):
            self.reached, self.reached_step = iteration.loss_scale, iteration.step
            news = True
        return news

    def _is_quiet(self, step: int) -> bool:
        made = self.finding
        gap = (made.last_step - made.first_step) / max(1, made.count - 1)
        return step - made.last_step > max(MIN_QUIET, QUIET_GAPS * gap)

    @property
    def has_come_back(self) -> bool:
        """Whether the scale is about what it was before."""
        return self.reached >= COME_BACK * self.before
