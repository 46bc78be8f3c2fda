"""How long a step usually takes, before a profiler window and after it."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

STEPS = 16
"""Steps on either side of a window that are compared."""

FEWEST = 4


class StepTimes:
    """Remembers the newest steps that nobody has worked in.

    Args:
        all_alike: Whether sampled steps count, as where every step is sampled.
    """

    def __init__(self, *, all_alike: bool) -> None:
        self._all_alike = all_alike
        self._plain: deque[float] = deque(maxlen=STEPS)
        self._any: deque[float] = deque(maxlen=STEPS)
        self._before = math.nan

    def add(self, duration_s: float, *, sampled: bool) -> None:
        """A step has ended that was not profiled."""
        if math.isnan(duration_s):
            return
        self._any.append(duration_s)
        if self._all_alike or not sampled:
            self._plain.append(duration_s)

    @property
    def usual_s(self) -> float:
        """The median; of sampled steps if there are hardly others, NaN if there are none."""
        for steps in (self._plain, self._any):
            if len(steps) >= FEWEST:
                return median(steps)
        return math.nan

    def window_ended(self) -> None:
        """Compare what comes with what was, from here on."""
        self._before = self.usual_s if len(self._plain) >= FEWEST else math.nan
        self._plain.clear()
        self._any.clear()

    def drag(self) -> float | None:
        """Return the usual step time since the last window over the one before it, once.

        ``None`` while it is not known, and where it was told already.
        """
        if math.isnan(self._before) or len(self._plain) < STEPS:
            return None
        before, self._before = self._before, math.nan
        return median(self._plain) / before if before else None
