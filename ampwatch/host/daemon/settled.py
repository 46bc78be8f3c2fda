"""Keeps and removes the files of rings that are read to their end.

Shared memory is memory: a file that nobody needs any more has to go, and soon.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampwatch.host.daemon.discovery import Signature, opened_directory

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ampwatch.wire.records import RunIdentity

FLIGHT_RECORDER_SECONDS = 86400.0
"""Time for which the ring of a writer that died stays on disk: long enough to read last
night's crash, short enough that shared memory does not fill with the dead. Unit: s."""

FLIGHT_RECORDER_BYTES = 32 << 20
"""Room for the flight recorders in one directory: those of two jobs of eight ranks with
rings of the usual size. On a small file system a quarter of it, else the crashes of
different runs would leave the next one no shared memory."""

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Settled:
    """A file that is not read any more.

    Attributes:
        signature: The file.
        remove_after: Unix time from which it is removed. Unit: s.
        problem: Why it cannot be read or removed, if so.
        was_read: It was a ring.
        died: Whose flight recorder it is, if it is one.
        last_ns: Newest time its writer is known to have lived. Unit: ns.
    """

    signature: Signature
    remove_after: float
    problem: str = ""
    was_read: bool = True
    died: RunIdentity | None = None
    last_ns: int = 0

    def is_still(self, signature: Signature) -> bool:
        """Return whether there is nothing new to read in the file that has ``signature`` now.

        A ring that was read to its end stays read: mapped memory reaches the time stamp of
        its file late. A file that could not be read may have become a ring meanwhile.
        """
        if not self.was_read:
            return signature == self.signature
        return signature.is_same_file(self.signature)


def predecessors(
    files: Mapping[Path, Settled], directory: Path, successor: RunIdentity
) -> list[Path]:
    """Return the flight recorders in ``directory`` in whose place ``successor`` has come.

    Those of its run, rank and host that were dead when it started: two runs of one name
    may live at once. The pid says nothing: in a container every start may have the same.
    Another directory may be another user's.
    """
    return [
        path
        for path, settled in files.items()
        if (died := settled.died) is not None
        and path.parent == directory
        and (died.run, died.rank, died.host) == (successor.run, successor.rank, successor.host)
        and settled.last_ns < successor.started_ns
    ]


def surplus(files: Mapping[Path, Settled]) -> list[Path]:
    """Return the oldest flight recorders where they take too much room; never the newest one."""
    recorders = [(path, settled) for path, settled in files.items() if settled.died is not None]
    found = []
    taken: Counter[Path] = Counter()
    for path, settled in sorted(recorders, key=lambda item: item[1].last_ns, reverse=True):
        is_newest = not taken[path.parent]
        taken[path.parent] += settled.signature.size
        if not is_newest and taken[path.parent] > _room(path.parent):
            found.append(path)
    return found


def remove(path: Path, signature: Signature) -> str:
    """Remove the very file that was read; leave one that took its place.

    Returns:
        Why it is still there, empty if it is not.
    """
    try:
        # Both by the descriptor of one directory: between a check and an unlink by path, somebody
        # could put a link in place of the directory, and root would remove a file elsewhere.
        with opened_directory(path.parent) as directory:
            status = os.stat(path.name, dir_fd=directory, follow_symlinks=False)
            if Signature.of(status).is_same_file(signature):
                os.unlink(path.name, dir_fd=directory)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"expected to remove the ring of a run that has ended, got: {error.strerror}; remove it, or give the daemon the right to"
    return ""


def _room(directory: Path) -> float:
    """Return how much the flight recorders in ``directory`` may take. Unit: bytes."""
    try:
        status = os.statvfs(directory)
    except OSError:
        return FLIGHT_RECORDER_BYTES
    # A tmpfs without a limit says that it has no blocks.
    return min(FLIGHT_RECORDER_BYTES, status.f_frsize * status.f_blocks / 4 or NEVER)
