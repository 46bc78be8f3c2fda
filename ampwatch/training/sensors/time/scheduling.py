"""How long the training thread has computed, and how long it has waited for a core."""

from __future__ import annotations

import os

from ampwatch.guard import Suppress

SCHEDSTAT = "/proc/thread-self/schedstat"
"""Linux' account of the calling thread: ns on a core, ns ready to run without one, times it ran.

Source: Documentation/scheduler/sched-stats.rst of the kernel."""

LENGTH = 96
"""Bytes that three numbers of 64 bits take at most, and more."""


class ThreadTimes:
    """The times of the thread that reads them first. Never raises.

    Attributes:
        cpu_ns: CPU time so far; -1 where the system does not tell. Unit: ns.
        run_delay_ns: Time so far in which the thread could run and had no core; -1 likewise. Unit: ns.

    Cost: 2.4 us a reading, 5 us the first.
    """

    def __init__(self) -> None:
        self.cpu_ns = self.run_delay_ns = -1
        self._file = -1
        self._has_tried = False

    def read(self) -> None:
        """Read both, on the thread whose they are."""
        # Which thread the file is of is decided where it is opened.
        with Suppress(OSError, ValueError):
            if not self._has_tried:
                self._has_tried = True
                self._file = os.open(SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
            if self._file >= 0:
                cpu, delay = os.pread(self._file, LENGTH, 0).split()[:2]
                self.cpu_ns, self.run_delay_ns = int(cpu), int(delay)

    def close(self) -> None:
        """Close the file. Idempotent."""
        file, self._file, self._has_tried = self._file, -1, False
        if file >= 0:
            with Suppress(OSError):
                os.close(file)
