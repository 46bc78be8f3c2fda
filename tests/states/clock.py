"""A clock that a script sets, for a process whose training is to last longer than its computing does.

The clock jumps from step to step, so that minutes pass between a fault and the next scrape. Within a
step it goes on only by being read, and by the same each time: what a script shows must not depend on
how fast the machine is, and durations that ampwatch takes of its own work are not to be zero.
"""

from __future__ import annotations

import time
from itertools import count

SECOND = 1_000_000_000
"""Unit: ns."""

START = 1_700_000_000
"""Unix time at which every script starts. Unit: s."""

READING_NS = 1_000
"""How far the clock goes on with each reading. Unit: ns.

A step has some hundreds of readings, a ten-thousandth of its time and less than it is shown with.
"""


class ScriptedClock:
    """The time of a script. Threads may read it while another sets it."""

    def __init__(self) -> None:
        self.put(float(START))

    def put(self, unix: float) -> None:
        """Let it be ``unix`` now. Unit: s."""
        self._set(round(unix * SECOND))

    def go_on(self, seconds: float) -> None:
        """Let so much time pass now. Unit: s."""
        self._set(self.now_ns() + round(seconds * SECOND))

    def _set(self, now_ns: int) -> None:
        # One object that is read as a whole: a thread that was just reading cannot put the clock back.
        self._readings = count(now_ns, READING_NS)

    def now_ns(self) -> int:
        """Return the time since the epoch. Unit: ns."""
        return next(self._readings)

    def now(self) -> float:
        """Return the time since the epoch. Unit: s."""
        return self.now_ns() / SECOND

    def rule(self) -> None:
        """Replace the clocks of the module ``time``; to be called before ampwatch is imported.

        Timeouts of locks and queues stay real: the standard library took its clock when it was
        imported.
        """
        time.time = time.monotonic = time.perf_counter = self.now
        time.time_ns = time.monotonic_ns = time.perf_counter_ns = self.now_ns
