"""The daemon that reads the rings of this training: where it is, for as long as the training lives.

A daemon may die: a batch system ends the job that has started it, memory runs out. There is no
thread here, and nothing waits. Now and then, when a record is written, the lock file says whether
the daemon lives. If it does not, one of the processes that notice begins to start another one, and
all of them read later where that serves.
"""

from __future__ import annotations

import math
import os
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ampwatch.errors import AmpwatchError
from ampwatch.guard import is_of_a_signal, unbroken
from ampwatch.runtime import DAEMON_LOG, runtime_path
from ampwatch.training.launcher import START_SECONDS, start_daemon
from ampwatch.wire.rendezvous.lock import read_lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.settings import Settings
    from ampwatch.training.launcher import DaemonStatus
    from ampwatch.wire.rendezvous.lock import DaemonInfo

CHECK_SECONDS = 10.0
"""Time from one read of the lock file to the next."""

SOON_SECONDS = 0.5
"""Time from one read of the lock file to the next, while a daemon is starting. Unit: s."""

RETRY_SECONDS = 20.0
"""Time after a daemon that could not be started; twice as long each time after that."""

MAX_RETRY_SECONDS = 1800.0

CLOSE_SECONDS = 3.0
"""Patience, at the end of the training, with a daemon that is starting. Unit: s."""

KILL_SECONDS = 1.0
"""Patience there with a process that was killed: one that waits for a file system ends later. Unit: s."""

_read_lock = unbroken(read_lock)
"""What is behind it passes over an ``OSError``, as the ``TimeoutError`` of a time limit is one."""


class DaemonLink:
    """The way to the daemon of one training.

    A daemon that a training has started comes back. Whoever has started another one, by hand or as
    a service, has it come back or not; the same holds for one that was to end.

    Args:
        settings: Where the daemon is, and how another one is started.
        status: What was found at the start of the training.
        moved: Called with the new address, empty without one, and a sentence about it.
        clock: Monotonic time. Unit: s.
        start: Begins to start a daemon.

    Attributes:
        url: Address of the page; empty while no daemon runs.
        due_s: When to check next, by the clock. Unit: s.
    """

    def __init__(
        self,
        settings: Settings,
        status: DaemonStatus,
        moved: Callable[[str, str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Settings], subprocess.Popen[bytes] | None] = start_daemon,
    ) -> None:
        self.url = status.url
        # A daemon without a lock of this user's is the machine's, and its service's to look after.
        self.due_s = math.inf if status.info is None else clock() + CHECK_SECONDS
        self._settings = settings
        self._info = status.info
        self._moved = moved
        self._clock = clock
        self._start = start
        self._pid = os.getpid()
        self._child: subprocess.Popen[bytes] | None = None
        self._give_up_s = math.inf
        self._retry_s = -math.inf
        self._delay_s = RETRY_SECONDS
        self._has_complained = False

    def check(self) -> None:
        """Notice whether the daemon lives, and begin to bring it back if it does not.

        Cost:
            Some 20 us; some ms where a daemon is brought back.
        """
        if self._info is None or math.isinf(self.due_s) or self._pid != os.getpid():
            return
        now = self._clock()
        self.due_s = now + CHECK_SECONDS
        directory = runtime_path(self._settings.runtime_dir)
        # Before the lock, which a process that has ended does not hold any more.
        has_failed = self._has_failed(now)
        try:
            lock_state = _read_lock(directory)
        except OSError as error:
            if is_of_a_signal(error):
                raise
            return  # whoever has removed the file has not ended the daemon
        if lock_state.info is not None:
            self._found(lock_state.info)
        elif lock_state.is_held:  # by somebody who is about to start one
            self.url = ""
            self.due_s = now + SOON_SECONDS
        elif lock_state.has_resigned or not self._info.auto:
            self._lost(self._info)
        elif has_failed:
            self._failed(now, f"see {directory / DAEMON_LOG}")
        elif self._child is not None:
            self.due_s = now + SOON_SECONDS
        elif now >= self._retry_s:
            self._bring_back(now)

    def close(self) -> None:
        """Leave no process behind, and check no more."""
        child, self._child = self._child, None
        self.due_s = math.inf
        if child is None or self._pid != os.getpid():
            return
        try:
            child.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            with suppress(subprocess.TimeoutExpired):
                child.wait(KILL_SECONDS)

    def _has_failed(self, now: float) -> bool:
        """Return whether the process that starts a daemon has ended, and let go of it.

        One that takes too long is ended.
        """
        child = self._child
        if child is None:
            return False
        if child.poll() is None:
            if now >= self._give_up_s:
                # Not waited for: in the middle of a system call it ends when that does, and a step
                # must not hang for as long. The next check finds it ended, and the lock free.
                child.kill()
            return False
        self._child = None
        return True

    def _found(self, info: DaemonInfo) -> None:
        """Go by what a daemon says of itself."""
        before, self._info = self._info, info
        self._retry_s, self._delay_s, self._has_complained = -math.inf, RETRY_SECONDS, False
        self.url = info.url
        if info == before:
            return
        self._moved(
            self.url, f"the daemon had ended; another one runs, and this run is at {info.url}"
        )

    def _lost(self, info: DaemonInfo) -> None:
        """Go without a daemon until somebody starts one."""
        if not self.url:
            return
        self.url = ""
        self._moved(
            "",
            f"the daemon at {info.url} has ended, and no page shows this run until another one starts: `ampwatch daemon` starts one, or the next ampwatch.monitor()",
        )

    def _bring_back(self, now: float) -> None:
        self.url = ""
        self.due_s = now + SOON_SECONDS
        self._give_up_s = now + START_SECONDS
        try:
            self._child = self._start(self._settings)
        except (AmpwatchError, OSError) as error:
            if is_of_a_signal(error):
                raise
            self._failed(now, str(error))

    def _failed(self, now: float, why: str) -> None:
        """Try again later, each time after a longer while; reported once."""
        self._retry_s = now + self._delay_s
        self._delay_s = min(2 * self._delay_s, MAX_RETRY_SECONDS)
        self.due_s = now + CHECK_SECONDS
        if self._has_complained or self._info is None:
            return
        self._has_complained = True
        self._moved(
            "",
            f"the daemon has ended and another one could not be started: {why}; training is not affected, and ampwatch tries again from time to time",
        )
