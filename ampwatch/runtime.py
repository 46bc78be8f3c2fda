"""Places of ampwatch's files on a machine, and their owners.

Both halves must agree on these places without talking to each other: the
training process puts ring files there, the daemon finds them and holds its lock
there. Everything is private to one user (directories 0700, files 0600).
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ampwatch.errors import RingError, remedy_of

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the tmpfs POSIX shared memory lives in, not a temp file
SESSIONS = Path("/run/user")
SERVICE_RUNTIME = Path("/run/ampwatch")
"""Runtime directory of the system's own daemon, made by systemd for its user (``deploy/systemd``)."""

ANNOUNCEMENT = "ampwatch-machine.lock"
"""File in which the daemon of a machine says where it serves."""

RING_SUFFIX = ".ring"
DAEMON_LOCK = "daemon.lock"
DAEMON_LOG = "daemon.log"
DAEMON_READ = "daemon.read"
"""An empty file: its date is until when a daemon has read the rings."""


def private_directory(path: Path) -> Path:
    """Create ``path`` for this user alone, or check that it already is so.

    What was there before is never changed: it may be a place that others need, such as
    ``/dev/shm`` itself.

    Args:
        path: The directory; missing parents are created in the same way.

    Returns:
        ``path``, now a directory of mode 0700 owned by the effective user.

    Raises:
        RingError: If it cannot be created, is a symbolic link, belongs to somebody else,
            or lets others in (they could then read or replace the files in it).
    """
    try:
        _make(path)
        # Not ``stat``: a link in a directory that all may write to could lead to somebody else's.
        status = path.lstat()
    except OSError as error:
        remedy = remedy_of(error, "set AMPWATCH_RUNTIME_DIR to a writable directory")
        msg = f"the directory {str(path)!r} cannot be created ({error.strerror}); {remedy}"
        raise RingError(msg) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        msg = f"{str(path)!r} is not a directory of uid {os.geteuid()}: it has mode {stat.filemode(status.st_mode)} and belongs to uid {status.st_uid}; remove it or set AMPWATCH_RUNTIME_DIR"
        raise RingError(msg)
    if lets_others_in(status):
        msg = f"other users can enter the directory {str(path)!r}: its mode is {stat.filemode(status.st_mode)}, not 0700; name another directory, or a subdirectory of it"
        raise RingError(msg)
    return path


def lets_others_in(status: os.stat_result) -> bool:
    """Return whether the mode of a directory gives group or others any right."""
    return bool(stat.S_IMODE(status.st_mode) & 0o077)


def _make(path: Path) -> None:
    """Create what is missing of ``path``, from the top, each directory of mode 0700.

    Raises:
        OSError: If one of them cannot be created.
    """
    # ``lexists``: a link that leads nowhere counts as there; what is behind it is not ours to make.
    missing = [place for place in (path, *path.parents) if not os.path.lexists(place)]
    for place in reversed(missing):
        with suppress(FileExistsError):  # another rank was faster
            place.mkdir(mode=0o700)
            place.chmod(0o700)  # whatever the umask took away


def runtime_path(configured: str = "") -> Path:
    """Return the directory of the daemon's lock and log; it need not exist, nothing is created.

    In this order: ``configured``, systemd's ``$RUNTIME_DIRECTORY``,
    ``$XDG_RUNTIME_DIR/ampwatch``, ``ampwatch-<uid>`` in the temporary directory.

    Args:
        configured: The setting ``runtime_dir``, empty for the default.

    Raises:
        RingError: If nothing names it and there is no temporary directory either.
    """
    if configured:
        return Path(configured)
    if managed := os.environ.get("RUNTIME_DIRECTORY"):
        return Path(managed.split(":")[0])
    session = os.environ.get("XDG_RUNTIME_DIR")
    if session and os.access(session, os.W_OK):
        return Path(session) / "ampwatch"
    return _temporary_directory() / f"ampwatch-{os.geteuid()}"


def runtime_paths(configured: str = "") -> list[Path]:
    """Return where a daemon of this user may have its lock, the place of this process's own first.

    A daemon that was started in a login session has another place than a batch job.

    Args:
        configured: The setting ``runtime_dir``; if given, it is the only place.
    """
    if configured:
        return [Path(configured)]
    places = []
    with suppress(RingError):
        places.append(runtime_path())
    places.append(SESSIONS / str(os.geteuid()) / "ampwatch")
    with suppress(RingError):
        places.append(_temporary_directory() / f"ampwatch-{os.geteuid()}")
    return list(dict.fromkeys(places))


def service_uid() -> int | None:
    """Return the user of the system's own daemon; ``None`` where there is none.

    It is the owner of its runtime directory, where nobody but root could have made that.
    """
    try:
        parent, status = SERVICE_RUNTIME.parent.lstat(), SERVICE_RUNTIME.lstat()
    except OSError:
        return None
    is_roots = parent.st_uid == 0 and not stat.S_IMODE(parent.st_mode) & 0o022
    is_private = stat.S_ISDIR(status.st_mode) and not lets_others_in(status)
    return status.st_uid if is_roots and is_private else None


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
    read-only, if there is one at all. Nothing is created here.

    Args:
        ring_dir: The setting ``ring_dir``; if given, it is the only place.
        runtime_dir: The setting ``runtime_dir``.
    """
    if ring_dir:
        return [Path(ring_dir)]
    places = [SHARED_MEMORY / f"ampwatch-{os.geteuid()}"]
    with suppress(RingError):  # whoever needs a daemon is notified by runtime_directory()
        places.append(runtime_path(runtime_dir))
    return places


def announcement_path(ring_dir: str = "") -> Path:
    """Return where the daemon of a machine says where it serves.

    It is where the rings are: containers that are watched from outside share that place.

    Args:
        ring_dir: The setting ``ring_dir``.
    """
    is_usual = not ring_dir or Path(ring_dir) == SHARED_MEMORY / f"ampwatch-{os.geteuid()}"
    return (SHARED_MEMORY if is_usual else Path(ring_dir)) / ANNOUNCEMENT


def search_ring_directories() -> Iterator[Path | None]:
    """Search the places in which users of this machine have rings, for a machine-wide daemon.

    Anybody can fill these places: the caller may stop at any entry, and go on later. Anybody can
    also put links and directories there: see ``is_of_its_user``.

    Yields:
        For each entry what may be a ring directory by its name, else ``None``.
    """
    places = [(SHARED_MEMORY, "ampwatch-", ""), (SESSIONS, "", "ampwatch")]
    with suppress(RingError):
        places.append((_temporary_directory(), "ampwatch-", ""))
    for place, prefix, inside in places:
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                uid = entry.name.removeprefix(prefix)
                fits = uid.isdecimal() and entry.name == prefix + uid
                # The listing says so by itself: no file costs a system call.
                is_one = fits and entry.is_dir(follow_symlinks=False)
                yield place / entry.name / inside if is_one else None


def is_of_its_user(path: Path) -> bool:
    """Return whether ``.../ampwatch-<uid>`` or ``<uid>/ampwatch`` is a directory of that uid."""
    uid = path.parent.name if path.parent.parent == SESSIONS else path.name.partition("-")[2]
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and str(status.st_uid) == uid


def _temporary_directory() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        msg = f"there is no temporary directory ({error.strerror}); set AMPWATCH_RUNTIME_DIR to a writable directory"
        raise RingError(msg) from error
