"""Leaves the terminal and the parent process behind, as daemons do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ampwatch.runtime import DAEMON_LOG

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MAX_LOG = 1 << 20
"""A log larger than this is begun anew. Unit: bytes."""


def detach(directory: Path, parent_says: Callable[[int], None]) -> None:
    """Go on in a child that nobody waits for; this process exits with 0.

    Whoever started this process thereby learns that the daemon is ready, has no child
    left to wait for, and sees everything that is said from now on in the log.

    Args:
        directory: Where the log goes.
        parent_says: Called with the child's pid, in the process that exits.
    """
    log = directory / DAEMON_LOG
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(log, flags, 0o600)
    if os.fstat(descriptor).st_size > MAX_LOG:
        os.ftruncate(descriptor, 0)
    pid = os.fork()
    if pid:
        parent_says(pid)
        os._exit(0)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
