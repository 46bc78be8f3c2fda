"""Finds ring files: lists the ring directories, trusts nothing that lies in them.

Another user can put files, links and pipes into these directories. Only regular
files are taken, of the user who owns the directory, in directories that are no links.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ampwatch import runtime
from ampwatch.errors import DaemonError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MAX_RINGS = 256
"""Rings taken from one directory: many more than a machine has ranks, few enough
that nobody can make the daemon run out of descriptors by touching files."""

MAX_ENTRIES = 8192
"""Entries of a user's directory that are read, rings or not, and entries that one pass reads in search of
the directories of users. Listing a million takes seconds, twice a second."""

REFRESH_SECONDS = 5.0
"""Time between two searches for the directories of users. Unit: s."""

CAP_DAC_OVERRIDE = 1 << 1  # linux/capability.h


@dataclass(frozen=True, slots=True)
class Signature:
    """The version of a file, by its ``stat``; a replaced file has another inode."""

    device: int
    inode: int
    modified_ns: int
    size: int

    @classmethod
    def of(cls, status: os.stat_result) -> Signature:
        """Return the signature of a file by its ``stat``."""
        return cls(status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)

    def is_same_file(self, other: Signature) -> bool:
        """Return whether both are of one file, whatever was written to it meanwhile."""
        return (self.device, self.inode) == (other.device, other.inode)


@dataclass(frozen=True, slots=True)
class FoundRings:
    """The ring files of one pass over the directories.

    Attributes:
        rings: Signature by path of what may be a ring; in each directory the oldest first,
            so that a run that was restarted comes after its predecessor.
        problems: Why a directory or file is left alone, by path.
    """

    rings: dict[Path, Signature]
    problems: dict[Path, str]


def find_rings(directories: Iterable[Path], *, any_user: bool) -> FoundRings:
    """Find ring files.

    Args:
        directories: Where rings may be; those that do not exist are passed over.
        any_user: Take directories of every user, else of the effective user alone.

    Cost: A listing of each directory, of ``MAX_ENTRIES`` at most, and one ``stat`` for each ring.
    """
    found = FoundRings({}, {})
    for directory in directories:
        try:
            # Not ``stat``: in /tmp anybody can make a link by this name to a directory of theirs.
            status = directory.lstat()
            if not stat.S_ISDIR(status.st_mode):
                found.problems[directory] = "this is a link or a file, not a directory; remove it"
            elif not any_user and status.st_uid != os.geteuid():
                found.problems[directory] = (
                    f"the directory belongs to uid {status.st_uid}, not to {os.geteuid()}; remove it or set AMPWATCH_RING_DIR"
                )
            else:
                _list_rings(directory, status, found)
        except FileNotFoundError:  # noqa: PERF203 - two directories
            continue
        except OSError as error:
            found.problems[directory] = _why(error)
    return found


@contextmanager
def opened_directory(path: Path) -> Iterator[int]:
    """Yield a descriptor of a directory; what is done by it cannot be led elsewhere by a link.

    Raises:
        OSError: If it cannot be opened, or is a link.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _list_rings(directory: Path, expected: os.stat_result, found: FoundRings) -> None:
    with opened_directory(directory) as descriptor:
        if not os.path.samestat(os.fstat(descriptor), expected):
            # Replaced between ``lstat`` and ``open``: what was checked is not what is open.
            # The next poll takes it, if it passes the checks.
            return
        statuses = dict(_ring_files(descriptor))
    oldest_first = sorted(statuses, key=lambda name: statuses[name].st_mtime_ns)
    if len(statuses) > MAX_RINGS:
        found.problems[directory] = (
            f"there are {len(statuses)} rings, more than {MAX_RINGS}; only the newest are watched; remove the others"
        )
    for name in oldest_first[-MAX_RINGS:]:
        path, status = directory / name, statuses[name]
        # A pipe would block the daemon when it is opened; a link could name any file that root may read.
        if not stat.S_ISREG(status.st_mode) or status.st_uid != expected.st_uid:
            found.problems[path] = (
                f"this is not a regular file of uid {expected.st_uid}: it has mode {stat.filemode(status.st_mode)} and belongs to uid {status.st_uid}; remove it"
            )
        else:
            found.rings[path] = Signature.of(status)


def _ring_files(directory: int) -> Iterator[tuple[str, os.stat_result]]:
    """Return name and status of everything in ``directory`` that is called a ring."""
    # By the descriptor, not by the path: the directory cannot be exchanged in between.
    with os.scandir(directory) as entries:
        for entry in islice(entries, MAX_ENTRIES):
            if entry.name.endswith(runtime.RING_SUFFIX):
                with suppress(FileNotFoundError):  # its run ended just now
                    yield entry.name, entry.stat(follow_symlinks=False)


def _why(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"the directory cannot be listed ({error.strerror}); run the machine-wide daemon as root or with CAP_DAC_OVERRIDE"
    return f"the directory cannot be listed ({error.strerror})"


class MachineDirectories:
    """The ring directories of all users.

    Any user can put a million files where they are searched for. Each call reads a part, and the next
    one goes on from there; directories that are known do not wait for that.

    Args:
        clock: Monotonic time. Unit: s.
    """

    def __init__(self, runtime_dir: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._runtime_dir = runtime_dir
        self._clock = clock
        self._known: set[Path] = set()
        self._search: Iterator[Path | None] | None = None
        self._next = -math.inf

    def __call__(self) -> list[Path]:
        """Return where rings may be: those of others that are known, and this daemon's own.

        Cost: ``MAX_ENTRIES`` entries read at most, and an ``lstat`` for each whose name fits.
        """
        now = self._clock()
        if self._search is None and now >= self._next:
            self._search = runtime.search_ring_directories()
        if self._search is not None:
            read = list(islice(self._search, MAX_ENTRIES))
            self._known.update(path for path in read if path is not None)
            if len(read) < MAX_ENTRIES:
                self._search, self._next = None, now + REFRESH_SECONDS
        own = runtime.ring_directories("", self._runtime_dir)
        self._known = {path for path in self._known.difference(own) if runtime.is_of_its_user(path)}
        return [*sorted(self._known), *own]


def check_may_tidy_all(status: Path = Path("/proc/self/status")) -> None:
    """Check that this process may read the private files of every user, and remove them.

    Raises:
        DaemonError: If it may not.
    """
    lines = status.read_text().splitlines()
    effective = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
    if not int(effective, 16) & CAP_DAC_OVERRIDE:
        msg = f"--machine needs the right to read and remove the rings of every user: uid {os.geteuid()} has no CAP_DAC_OVERRIDE (CAP_DAC_READ_SEARCH can only read); start the daemon as root or with that capability, or without --machine"
        raise DaemonError(msg)
