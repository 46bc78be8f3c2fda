"""Schedule of the profiler windows that open by themselves, and step times around them."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from ampwatch.wire.records import WindowSkip

SHARE_OF_BUDGET = 0.25
"""Share of the overhead budget that windows may take."""

RETRY_SECONDS = 30.0
"""Wait of a window that was in somebody's way. Unit: s."""

DRAGS = 1.05
"""Ratio from which on steps after a window count as slower than steps before it."""

MAX_PATIENCE = 64
"""Factor by which the gap can become longer than usual."""

MEMORY_LIMIT = 256 << 20
"""Growth of the process by windows, beyond which they come less often. Unit: bytes."""

STEPS = 16
"""Steps on either side of a window that are compared."""

MIN_STEPS = 4
"""Steps that have a usual time."""


class WindowSchedule:
    """Spaces the windows out: by time, by what they have cost, and by the harm they do.

    Each time that a window is due and held back is counted once.

    Args:
        gap_s: Least time from the end of one window to the next; with 0 none opens by itself.
            Unit: s.
        budget: Share of the step time that ampwatch may cost.

    Attributes:
        skipped: Windows held back so far, per reason in the order of ``WindowSkip``.
    """

    def __init__(self, gap_s: float, budget: float) -> None:
        self._gap_s = gap_s
        self._share = budget * SHARE_OF_BUDGET
        self._due_s = 0.0
        self._paid_s = 0.0
        self._rested_s = 0.0
        self._patience = 1
        self._was_dragging = False
        self.skipped = [0] * len(WindowSkip)

    def is_due(self, now_s: float, grown: int) -> bool:
        """Return whether a window may open now; count why one that is due may not.

        Args:
            now_s: Monotonic time. Unit: s.
            grown: Growth of the process by windows. Unit: bytes.
        """
        if not self._gap_s or now_s < self._due_s:
            return False
        if now_s < self._paid_s:
            self.postpone(WindowSkip.BUDGET, self._paid_s)
        elif now_s < self._rested_s:
            self.postpone(WindowSkip.DRAG, self._rested_s)
        elif grown > MEMORY_LIMIT:
            self.postpone(WindowSkip.MEMORY, now_s + MAX_PATIENCE * self._gap_s)
        else:
            return True
        return False

    def give_way(self, reason: WindowSkip, now_s: float) -> None:
        """Count a window that gives way to somebody else, and try again later."""
        self.skipped[reason] += 1
        self.put_off(now_s)

    def put_off(self, now_s: float) -> None:
        """Try again later, uncounted."""
        self._due_s = now_s + min(RETRY_SECONDS, self._gap_s)

    def postpone(self, reason: WindowSkip, until_s: float) -> None:
        """Count a window that is held back, and wait."""
        self.skipped[reason] += 1
        self._due_s = until_s

    def ended(self, now_s: float, cost_ns: int) -> None:
        """Wait after a window that has ended.

        Args:
            now_s: Monotonic time. Unit: s.
            cost_ns: Cost of the window. Unit: ns.
        """
        self._due_s = now_s + self._gap_s
        self._paid_s = now_s + cost_ns / 1e9 / self._share
        self._rested_s = now_s + self._patience * self._gap_s

    def dragged(self, ratio: float, now_s: float) -> None:
        """Take in how fast steps are after a window.

        The second time in a row that they stay slower the gap doubles; each time that they do not
        it halves again.

        Args:
            ratio: Usual step time after the window over the one before.
            now_s: Monotonic time. Unit: s.
        """
        drags = ratio > DRAGS
        if drags and self._was_dragging:
            self._patience = min(2 * self._patience, MAX_PATIENCE)
            self._rested_s = now_s + self._patience * self._gap_s
        elif not drags:
            self._patience = max(self._patience // 2, 1)
        self._was_dragging = drags


class StepTimes:
    """Remembers the durations of the newest steps without a window.

    Args:
        all_alike: Whether sampled steps count like others, since every step is sampled.
    """

    def __init__(self, *, all_alike: bool) -> None:
        self._all_alike = all_alike
        self._quiet: deque[float] = deque(maxlen=STEPS)
        self._any: deque[float] = deque(maxlen=STEPS)
        self._before = math.nan

    def add(self, duration_s: float, *, sampled: bool) -> None:
        """Take in a step that was not profiled.

        Args:
            duration_s: Wall time; NaN is left out. Unit: s.
            sampled: Whether something was measured in it.
        """
        if math.isnan(duration_s):
            return
        self._any.append(duration_s)
        if self._all_alike or not sampled:
            self._quiet.append(duration_s)

    @property
    def usual_s(self) -> float:
        """The median time; of sampled steps if there are hardly others, NaN if there are none."""
        for steps in (self._quiet, self._any):
            if len(steps) >= MIN_STEPS:
                return median(steps)
        return math.nan

    def window_ended(self) -> None:
        """Begin to compare the steps that follow with those before the window."""
        self._before = self.usual_s if len(self._quiet) >= MIN_STEPS else math.nan
        self._quiet.clear()
        self._any.clear()

    def drag(self) -> float | None:
        """Return the usual step time since the last window over the one before it, once.

        ``None`` while it is not known, and once it was returned.
        """
        if math.isnan(self._before) or len(self._quiet) < STEPS:
            return None
        before = self._before
        self._before = math.nan
        return median(self._quiet) / before if before else None
