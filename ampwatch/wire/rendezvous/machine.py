"""The announcement of a machine's daemon, which every user can read.

A user's daemon is found by the lock in a directory that this user alone can enter. The daemon of a
machine serves everybody, so that it says where it serves in a file that everybody can read. The
file is believed if root, or the user of the service, owns it and nobody else can write to it, and
if its lock is held: that goes when the daemon goes, however that happens.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.errors import DaemonError, remedy_of
from ampwatch.runtime import announcement_path, runtime_paths, service_uid
from ampwatch.wire.rendezvous.lock import MAX_CONTENT, DaemonInfo, encoded, info_of, read_lock
from ampwatch.wire.rendezvous.token import read_token

if TYPE_CHECKING:
    from pathlib import Path

    from ampwatch.settings import Settings

ROOT_UID = 0


class Announcement:
    """The announcement that this process holds.

    Args:
        path: Where it is.
        info: What it says.

    Raises:
        DaemonError: If the file cannot be written, as where somebody else has one of its name.
    """

    def __init__(self, path: Path, info: DaemonInfo) -> None:
        self._path = path
        # Whoever can read a file can lock it, and keep its owner from that: so each daemon makes a
        # new one, and lets others read it when it is locked.
        draft = self._path.with_name(f".{secrets.token_hex(8)}")
        try:
            self._fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                # Not flock(), which whoever can read may hold exclusively, after this one has ended.
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.write(self._fd, encoded(info))
                os.fchmod(self._fd, 0o644)
                draft.replace(self._path)
            except BaseException:
                draft.unlink(missing_ok=True)
                os.close(self._fd)
                raise
        except OSError as error:
            otherwise = "remove a file of that name, or make its directory writable for this daemon"
            msg = f"expected to write {str(self._path)!r}, by which trainings find this daemon, got: {error.strerror}; {remedy_of(error, otherwise)}"
            raise DaemonError(msg) from error

    def retract(self) -> None:
        """Remove the file, unless another daemon has taken its place."""
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._fd), self._path.lstat()):
                self._path.unlink()
        os.close(self._fd)


class Found(NamedTuple):
    """A daemon that shows the runs of this user.

    Attributes:
        info: What it says of itself.
        directory: The runtime directory of this user in which it has its lock, and its token;
            ``None`` for the daemon of the machine.
    """

    info: DaemonInfo
    directory: Path | None


def find_daemon(settings: Settings) -> Found | None:
    """Return the daemon of this user, in any place where it may have its lock; else that of the machine.

    Nothing is sent, and who listens on a port does not matter.

    Cost:
        Some 20 us a place, of which there are four.
    """
    for directory in runtime_paths(settings.runtime_dir):
        with suppress(OSError):
            if (info := read_lock(directory).info) is not None:
                return Found(info, directory)
    info = _announced(announcement_path(settings.ring_dir))
    return None if info is None else Found(info, None)


def readers_token(found: Found) -> str | None:
    """Return the token that a daemon wants of readers.

    Returns:
        Empty if it wants none; ``None`` if there is none that only this user can read, as of the
        daemon of the machine, which takes that of the user it runs as.
    """
    if not found.info.wants_token:
        return ""
    return None if found.directory is None else read_token(found.directory)


def _announced(path: Path) -> DaemonInfo | None:
    try:
        # Not blocking: nobody may ever write to a pipe of that name.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        is_closed = stat.S_ISREG(status.st_mode) and not stat.S_IMODE(status.st_mode) & 0o022
        if not is_closed or status.st_uid not in {ROOT_UID, service_uid()}:
            return None
        try:
            fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return info_of(os.pread(fd, MAX_CONTENT, 0))
    except OSError:
        return None
    else:
        return None
    finally:
        os.close(fd)
