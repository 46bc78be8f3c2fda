"""A clock that a script sets, for a process whose training is to last longer than its computing does.

The clock jumps from step to step, so that minutes pass between a fault and the next scrape. Within a
step it goes on, much slower than the real one: on a busy machine a step takes long, and ampwatch
would measure the more rarely the longer its own work seems to take.
"""

from __future__ import annotations

import time

SECOND = 1_000_000_000
"""Unit: ns."""

START = 1_700_000_000
"""Unix time at which every script starts. Unit: s."""

PACE = 0.02
"""How far the clock goes within a step, as a share of what the real one does."""

_real_ns = time.perf_counter_ns


class ScriptedClock:
    """The time of a script.

    Attributes:
        at_ns: Unix time at which the clock was put last. Unit: ns.
    """

    def __init__(self) -> None:
        self.put(float(START))

    def put(self, unix: float) -> None:
        """Let it be ``unix`` now. Unit: s."""
        self.at_ns = round(unix * SECOND)
        self._put_at_ns = _real_ns()

    def go_on(self, seconds: float) -> None:
        """Let so much time pass now. Unit: s."""
        self.at_ns += round(seconds * SECOND)

    def now_ns(self) -> int:
        """Return the time since the epoch. Unit: ns."""
        return self.at_ns + round(PACE * (_real_ns() - self._put_at_ns))

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
