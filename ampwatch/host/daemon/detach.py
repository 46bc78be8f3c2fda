"""Leaves the terminal and the parent process behind, as daemons do, and keeps a log of bounded size."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from ampwatch.runtime import DAEMON_LOG

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MAX_LOG = 1 << 20
"""A log larger than this is cut down to its end. Unit: bytes."""

KEPT_LOG = 1 << 18
"""Unit: bytes."""

STDERR = 2


class BoundedLog(logging.StreamHandler):  # type: ignore[type-arg] # not before Python 3.11
    """Logs to stderr, which is the log once detached, and keeps it within bounds.

    Not by renaming it, as the handlers of the library do: what is not logged, such as
    the last words of the interpreter, goes to the same file by its descriptor.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Log it."""
        try:
            cut(STDERR)
        except OSError:
            self.handleError(record)
        super().emit(record)


def cut(descriptor: int) -> None:
    """Cut a log, open for reading and appending, down to its end if it is too large; a pipe has no size."""
    size = os.fstat(descriptor).st_size
    if size > MAX_LOG:
        end = os.pread(descriptor, KEPT_LOG, size - KEPT_LOG)
        # The descriptor appends, so that the next write lands at the new end, whatever its offset.
        os.ftruncate(descriptor, 0)
        os.write(descriptor, end[end.find(b"\n") + 1 :])


def detach(directory: Path, parent_says: Callable[[int], None]) -> None:
    """Go on in a child that nobody waits for; this process exits with 0.

    Whoever started this process thereby learns that the daemon is ready, has no child
    left to wait for, and sees everything that is reported from now on in the log.

    Args:
        directory: Where the log goes.
        parent_says: Called with the child's pid, in the process that exits.
    """
    log = directory / DAEMON_LOG
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(log, flags, 0o600)
    cut(descriptor)
    # No thread has been started yet: a child of ``fork`` has none of them, but keeps their locks.
    pid = os.fork()
    if pid:
        parent_says(pid)
        os._exit(0)
    for standard in (1, STDERR):
        os.dup2(descriptor, standard)
    os.close(descriptor)
