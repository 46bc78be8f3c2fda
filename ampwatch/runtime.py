"""Where ampwatch keeps its files on a machine, and who owns them.

Both halves must agree on these places without talking to each other: the
training process puts ring files there, the daemon finds them and holds its lock
there. Everything is private to one user (directories 0700, files 0600).
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from ampwatch.errors import RingError

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the tmpfs POSIX shared memory lives in, not a temp file
RING_SUFFIX = ".ring"
DAEMON_LOCK = "daemon.lock"
DAEMON_LOG = "daemon.log"


def private_directory(path: Path) -> Path:
    """Create ``path`` for this user alone, or check that it already is so.

    Args:
        path: The directory; missing parents are created as well.

    Returns:
        ``path``, now a directory of mode 0700 owned by the effective user.

    Raises:
        RingError: If it cannot be created, is a symbolic link, or belongs to
            somebody else (another user could then read or replace the files in it).
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        msg = f"expected to create or find the directory {str(path)!r}, got: {error.strerror}; set AMPWATCH_RUNTIME_DIR to a writable directory"
        raise RingError(msg) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        msg = f"expected {str(path)!r} to be a directory of uid {os.geteuid()}, got mode {stat.filemode(status.st_mode)} of uid {status.st_uid}; remove it or set AMPWATCH_RUNTIME_DIR"
        raise RingError(msg)
    if stat.S_IMODE(status.st_mode) & 0o077:
        path.chmod(0o700)
    return path


def runtime_path(configured: str = "") -> Path:
    """Return the directory of the daemon's lock and log; it need not exist, nothing is created.

    In this order: ``configured``, systemd's ``$RUNTIME_DIRECTORY``,
    ``$XDG_RUNTIME_DIR/ampwatch``, ``ampwatch-<uid>`` in the temporary directory.

    Args:
        configured: The setting ``runtime_dir``, empty for the default.
    """
    if configured:
        return Path(configured)
    if managed := os.environ.get("RUNTIME_DIRECTORY"):
        return Path(managed.split(":")[0])
    session = os.environ.get("XDG_RUNTIME_DIR")
    if session and os.access(session, os.W_OK):
        return Path(session) / "ampwatch"
    return Path(tempfile.gettempdir()) / f"ampwatch-{os.geteuid()}"


def runtime_directory(configured: str = "") -> Path:
    """Return the directory of the daemon's lock and log (``runtime_path``), creating it if needed.

    Args:
        configured: The setting ``runtime_dir``, empty for the default.

    Raises:
        RingError: If the directory cannot be made private to this user.
    """
    return private_directory(runtime_path(configured))


def ring_directories(ring_dir: str = "", runtime_dir: str = "") -> list[Path]:
    """Return where this user's rings may be, the best place first.

    Shared memory first; the runtime directory where ``/dev/shm`` is full, absent or
    read-only. Nothing is created here.

    Args:
        ring_dir: The setting ``ring_dir``; if given, it is the only place.
        runtime_dir: The setting ``runtime_dir``.

    Raises:
        RingError: If the runtime directory cannot be made private to this user.
    """
    if ring_dir:
        return [Path(ring_dir)]
    return [SHARED_MEMORY / f"ampwatch-{os.geteuid()}", runtime_directory(runtime_dir) / "rings"]


def ring_directories_of_all_users(runtime_dir: str = "") -> list[Path]:
    """Return the ring directories of every user of this machine, for a machine-wide daemon.

    Args:
        runtime_dir: The setting ``runtime_dir``.

    Raises:
        RingError: If the runtime directory cannot be made private to this user.
    """
    places = sorted(SHARED_MEMORY.glob("ampwatch-*"))
    places += sorted(Path("/run/user").glob("*/ampwatch/rings"))
    places += sorted(p / "rings" for p in Path(tempfile.gettempdir()).glob("ampwatch-*"))
    return [*places, runtime_directory(runtime_dir) / "rings"]
