"""Lock that allows one daemon per user: a file that also says where the daemon serves.

The lock is the kernel's (``flock``): it goes when its holder goes, however that
happens, and it survives being handed to a child. The content is JSON, for the
launcher and for humans; it is only true while the lock is held.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, json

from ampwatch.errors import DaemonError, remedy_of
from ampwatch.runtime import DAEMON_LOCK

if TYPE_CHECKING:
    from pathlib import Path

MAX_CONTENT = 1 << 16

RESIGNED = b'{"resigned": true}\n'
"""Content of the file after a daemon that was to end: it is not to be brought back."""


class DaemonInfo(Struct, frozen=True):
    """Self-description of a daemon in its lock file.

    Attributes:
        pid: Its process id.
        scheme: ``http`` or ``https``.
        host: Address it listens on.
        port: Port it listens on.
        version: Version of ampwatch.
        layout: Version of the ring layout it reads.
        ring_directories: Directories in which it finds the rings of its own user; links are resolved.
        auto: A training has started it, so that nobody but trainings sees that there is one.
        wants_token: Readers need the token of its user.
        external_url: Address by which others open the page; empty if nobody gave one.
        scope: ``user`` or ``machine``: whose runs it shows.
    """

    pid: int
    scheme: str
    host: str
    port: int
    version: str
    layout: int
    ring_directories: tuple[str, ...] = ()
    auto: bool = False
    wants_token: bool = False
    external_url: str = ""
    scope: str = "user"

    @property
    def url(self) -> str:
        """Address of the page for people: the one that others open, else the one on this machine."""
        return self.external_url or self.local_url

    @property
    def local_url(self) -> str:
        """Address of the page for a browser on this machine."""
        return f"{self.scheme}://{reachable(self.host)}:{self.port}/"


def reachable(host: str) -> str:
    """Return ``host`` as it stands in a URL; a wildcard address becomes this machine."""
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"[{host}]" if ":" in host else host


class DaemonLock:
    """The held lock. It is released by :meth:`release` or with the process.

    Args:
        fd: Descriptor of the lock file, locked already; owned from now on.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def take(cls, directory: Path) -> DaemonLock | None:
        """Take the lock in ``directory``, or return ``None`` if somebody holds it.

        Raises:
            DaemonError: If the lock file cannot be opened or locked.
        """
        path = directory / DAEMON_LOCK
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise DaemonError(_trouble(path, error)) from error
        # flock, not a record lock: it belongs to the open file, so that a child which inherits the
        # descriptor goes on holding it after the launcher has closed its own.
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # What a daemon that was killed left there is not true any more.
            os.ftruncate(fd, 0)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, BlockingIOError):
                return None
            if isinstance(error, OSError):  # a file system without locks
                raise DaemonError(_trouble(path, error)) from error
            raise  # an interrupt: nobody would give the lock back
        return cls(fd)

    @classmethod
    def adopt(cls, fd: int, directory: Path) -> DaemonLock:
        """Go on holding the lock that the parent process took.

        Raises:
            DaemonError: If ``fd`` is not the lock file of ``directory``.
        """
        # The number alone proves nothing: whoever starts the daemon may hand it any descriptor.
        try:
            ours = os.path.samestat(os.fstat(fd), (directory / DAEMON_LOCK).stat())
        except OSError:
            ours = False
        if not ours:
            msg = f"expected descriptor {fd} to be {str(directory / DAEMON_LOCK)!r}; --lock-fd is for ampwatch's own launcher"
            raise DaemonError(msg)
        os.set_inheritable(fd, False)  # noqa: FBT003 - positional-only in os
        return cls(fd)

    def publish(self, info: DaemonInfo) -> None:
        """Write where the daemon serves."""
        # Written over the old content and then cut: a reader meanwhile sees something that is no
        # JSON, which counts as nothing.
        content = encoded(info)
        os.pwrite(self.fd, content, 0)
        os.ftruncate(self.fd, len(content))

    def retract(self) -> None:
        """Empty the file: still locked, but nobody serves now."""
        os.ftruncate(self.fd, 0)

    def let_go(self) -> None:
        """Close this process's descriptor; the lock lives on in a child that has it, too.

        ``LOCK_UN`` would unlock it for the child as well.
        """
        os.close(self.fd)

    def release(self) -> None:
        """Give the lock back, the file emptied. It stays: removing it would race with a taker."""
        self.retract()
        self.let_go()

    def resign(self) -> None:
        """Give the lock back and say that the daemon was to end."""
        os.pwrite(self.fd, RESIGNED, 0)
        os.ftruncate(self.fd, len(RESIGNED))
        self.let_go()


class LockState(NamedTuple):
    """The state of a lock file at one moment.

    Attributes:
        is_held: Somebody holds the lock: a daemon, or who is about to start one.
        info: What a daemon says of itself; ``None`` if nobody serves yet, or any more.
        has_resigned: The last daemon was to end.
    """

    is_held: bool
    info: DaemonInfo | None
    has_resigned: bool


def read_lock(directory: Path) -> LockState:
    """Return the state of the lock file in ``directory``, without taking the lock or changing it.

    Raises:
        OSError: If there is no such file, it cannot be read, or it belongs to another user.

    Cost:
        Some 20 us.
    """
    fd = _opened(directory / DAEMON_LOCK)
    try:
        # Shared with other readers and for an instant only; a taker that comes in it tries again.
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return LockState(
                is_held=True, info=info_of(os.pread(fd, MAX_CONTENT, 0)), has_resigned=False
            )
        content = os.pread(fd, len(RESIGNED) + 1, 0)
        return LockState(is_held=False, info=None, has_resigned=content == RESIGNED)
    finally:
        os.close(fd)


def read_info(directory: Path) -> DaemonInfo | None:
    """Return what the lock file in ``directory`` says, ``None`` if nothing that makes sense."""
    try:
        fd = _opened(directory / DAEMON_LOCK)
    except OSError:
        return None
    try:
        return info_of(os.pread(fd, MAX_CONTENT, 0))
    except OSError:
        return None
    finally:
        os.close(fd)


def _opened(path: Path) -> int:
    """Return a descriptor of a lock file of this user.

    Raises:
        OSError: If there is none, or it belongs to another user.
    """
    # Not blocking: nobody may ever write to a pipe of that name.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    # A directory for temporary files may have been tidied since it was found private, and anybody
    # can make the one of this user's name there anew.
    if os.fstat(fd).st_uid == os.geteuid():
        return fd
    os.close(fd)
    raise PermissionError(errno.EPERM, "it belongs to another user", str(path))


def encoded(info: DaemonInfo) -> bytes:
    """Return the content of a lock file."""
    return json.encode(info) + b"\n"


def info_of(content: bytes) -> DaemonInfo | None:
    """Return what a lock file says, ``None`` if nothing that makes sense."""
    try:
        return json.decode(content, type=DaemonInfo)
    except (ValueError, RecursionError):
        return None


def _trouble(path: Path, error: OSError) -> str:
    place = "set AMPWATCH_RUNTIME_DIR to a writable directory on a local file system"
    return f"expected to lock {str(path)!r}, got: {error.strerror}; {remedy_of(error, place)}"
