"""The record lock that says whether the writer of a ring still lives.

A POSIX record lock, because the kernel drops it however the process ends, a forked
child (a DataLoader worker) does not inherit it as it would a ``flock`` or an open
file description lock, and it means the same across pid namespaces, where the pid
in the file does not.

Its one trap: a process loses it as soon as it closes *any* descriptor of the file.
So nothing in the writer's process may open and close a ring; ``RingReader`` knows.
"""

from __future__ import annotations

import fcntl
import os
import struct

_FLOCK = struct.Struct("hhqqi4x")
"""``struct flock`` of 64-bit Linux: type, whence, start, length, pid (fcntl(2))."""


def hold(descriptor: int) -> None:
    """Lock byte 0 until the process ends or closes the file.

    Raises:
        OSError: If somebody else holds it, or the file system has no locks.
    """
    # One byte, and not by flock(): see above. It covers nothing, stores need no lock.
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)


def holder(descriptor: int) -> int | None:
    """Return the pid of the process that holds the lock, ``None`` if nobody does.

    The pid is 0 if the holder cannot be named from this pid namespace.

    Raises:
        OSError: If the kernel or the file system cannot say.
    """
    # F_OFD_GETLK, not F_GETLK: that one never sees the locks of the calling process,
    # and a reader in the writer's own process would take it for dead.
    question = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0)
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, question)
    kind, _, _, _, pid = _FLOCK.unpack(answer)
    return None if kind == fcntl.F_UNLCK else max(pid, 0)
