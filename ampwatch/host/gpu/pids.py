"""The namespace of the process ids that NVML returns.

They are those of the host or, with a newer driver, those of the caller's pid namespace. In
the host's own namespace both are the same; in a container a pid could be another process's.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

INITIAL_NAMESPACE = 0xEFFFFFFC
"""Inode of the host's pid namespace, fixed in Linux (``PROC_PID_INIT_INO``)."""


def is_of_the_host() -> bool:
    """Return whether this process is in the pid namespace of the host."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == INITIAL_NAMESPACE
    except OSError:
        return False


def has_open(pid: int, minor: int) -> bool:
    """Return whether the process that has ``pid`` here uses the GPU ``/dev/nvidia<minor>``.

    ``False`` as well if this user may not see that.
    """
    device = Path(f"/dev/nvidia{minor}")
    with suppress(OSError):
        # Each by itself: a descriptor can be closed between the listing and the reading.
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if link.readlink() == device:
                    return True
    return False
