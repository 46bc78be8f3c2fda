"""Finds ring files: lists the ring directories, trusts nothing that lies in them.

Another user can put files, links and pipes where a daemon looks. Taken are
regular files only, of the user who owns the directory, in directories that are
no links.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ampwatch.errors import DaemonError
from ampwatch.runtime import RING_SUFFIX, ring_directories_of_all_users

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MAX_RINGS = 256
"""Rings taken from one directory: many more than a machine has ranks, few enough
that nobody can make the daemon run out of descriptors by touching files."""

REFRESH_SECONDS = 5.0
"""How long the list of all users' directories is good: /tmp can have very many entries."""

CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1 << 1, 1 << 2  # linux/capability.h


@dataclass(frozen=True, slots=True)
class Signature:
    """What tells one version of a file from the next; a replaced file has another inode."""

    device: int
    inode: int
    modified_ns: int
    size: int

    @classmethod
    def of(cls, status: os.stat_result) -> Signature:
        """Return the signature of a file by its ``stat``."""
        return cls(status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)

    def is_same_file(self, other: Signature) -> bool:
        """Tell whether both are of one file, whatever was written to it meanwhile."""
        return (self.device, self.inode) == (other.device, other.inode)


@dataclass(frozen=True, slots=True)
class Found:
    """What one look into the directories found.

    Attributes:
        rings: Signature by path of what may be a ring.
        problems: Why a directory or file is not looked into, by path.
    """

    rings: dict[Path, Signature]
    problems: dict[Path, str]


def find_rings(directories: Iterable[Path], *, any_user: bool) -> Found:
    """Look for ring files.

    Args:
        directories: Where to look; those that do not exist are passed over.
        any_user: Take directories of every user, else of the effective user alone.

    Cost:
        One ``listdir`` for each directory and one ``lstat`` for each ring.
    """
    found = Found({}, {})
    for directory in directories:
        try:
            status = directory.lstat()
            if not stat.S_ISDIR(status.st_mode):
                found.problems[directory] = "expected a directory, found a link or file; remove it"
            elif not any_user and status.st_uid != os.geteuid():
                found.problems[directory] = (
                    f"expected a directory of uid {os.geteuid()}, found one of uid {status.st_uid}; remove it or set AMPWATCH_RING_DIR"
                )
            else:
                _look_into(directory, status.st_uid, found)
        except FileNotFoundError:  # noqa: PERF203 - two directories
            continue
        except OSError as error:
            found.problems[directory] = _why(error)
    return found


def _look_into(directory: Path, owner: int, found: Found) -> None:
    names = sorted(name for name in os.listdir(directory) if name.endswith(RING_SUFFIX))  # noqa: PTH208 - names, not paths: most are filtered away
    if len(names) > MAX_RINGS:
        found.problems[directory] = (
            f"expected {MAX_RINGS} rings at most, found {len(names)}; the rest is not watched, remove what is not needed"
        )
    for name in names[:MAX_RINGS]:
        path = directory / name
        try:
            status = path.lstat()
        except FileNotFoundError:  # its run ended just now
            continue
        if not stat.S_ISREG(status.st_mode) or status.st_uid != owner:
            found.problems[path] = (
                f"expected a regular file of uid {owner}, found mode {stat.filemode(status.st_mode)} of uid {status.st_uid}; remove it"
            )
        else:
            found.rings[path] = Signature.of(status)


def _why(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"expected to list the directory, got: {error.strerror}; run the machine-wide daemon as root or with CAP_DAC_READ_SEARCH"
    return f"expected to list the directory, got: {error.strerror}"


class MachineDirectories:
    """The ring directories of all users, looked up anew every few seconds.

    Args:
        runtime_dir: The setting ``runtime_dir``.
        clock: Monotonic time. Unit: s.
    """

    def __init__(self, runtime_dir: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._runtime_dir = runtime_dir
        self._clock = clock
        self._places: list[Path] = []
        self._next = -math.inf

    def __call__(self) -> list[Path]:
        """Return where rings may be."""
        if self._clock() >= self._next:
            self._places = ring_directories_of_all_users(self._runtime_dir)
            self._next = self._clock() + REFRESH_SECONDS
        return self._places


def check_may_read_all(status: Path = Path("/proc/self/status")) -> None:
    """Check that this process may read the private files of every user.

    Args:
        status: Where the kernel tells the capabilities of the process.

    Raises:
        DaemonError: If it may not.
    """
    lines = status.read_text().splitlines()
    effective = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
    if not int(effective, 16) & (CAP_DAC_OVERRIDE | CAP_DAC_READ_SEARCH):
        msg = f"expected the right to read every user's rings for --machine, got uid {os.geteuid()} without CAP_DAC_READ_SEARCH; start it as root or by the systemd unit, or leave --machine out"
        raise DaemonError(msg)
