"""Keeps and removes the files of rings that are read to their end.

Shared memory is memory: a file that nobody needs any more has to go, and soon. A daemon
that is started again needs those of the runs that its predecessor showed.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ampwatch.host.daemon.discovery import Signature, opened_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ampwatch.wire.records import RunIdentity

FLIGHT_RECORDER_SECONDS = 86400.0
"""Time for which the ring of a writer that died stays on disk: long enough to read last
night's crash, short enough that shared memory does not fill with the dead. Unit: s."""

MAX_LEFT_BYTES = 32 << 20
"""Room for the rings of runs that are over in one directory: those of two jobs of eight ranks
with rings of the usual size. On a small file system a quarter of it, else what different runs
leave would leave the next one no shared memory."""

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Settled:
    """A file that is not read any more.

    Attributes:
        remove_after: Unix time from which it is removed. Unit: s.
        problem: Why it cannot be read or removed, if so.
        was_read: It was a ring.
        is_foreign: It is a ring of another release, whose writer lives: its end leaves no trace on the file.
        left_by: Whose run is over, if one is, and has left it for a daemon to come.
        died: It is a flight recorder: the run has not reported how it ended.
        last_ns: Newest time its writer is known to have lived. Unit: ns.
    """

    signature: Signature
    remove_after: float
    problem: str = ""
    was_read: bool = True
    is_foreign: bool = False
    left_by: RunIdentity | None = None
    died: bool = False
    last_ns: int = 0

    def is_still(self, signature: Signature) -> bool:
        """Return whether there is nothing new to read in the file that has ``signature`` now.

        A ring that was read to its end stays read: mapped memory reaches the time stamp of
        its file late. A file that could not be read may have become a ring meanwhile.
        """
        if not self.was_read:
            return signature == self.signature and not self.is_foreign
        return signature.is_same_file(self.signature)


def predecessors(
    files: Mapping[Path, Settled], directory: Path, successor: RunIdentity
) -> list[Path]:
    """Return the files in ``directory`` of runs that are over, in whose place ``successor`` has come.

    Those of its run, rank and host that were over when it started: two runs of one name
    may live at once. The pid says nothing: in a container every start may have the same.
    Another directory may be another user's.
    """
    return [
        path
        for path, settled in files.items()
        if (who := settled.left_by) is not None
        and path.parent == directory
        and (who.run, who.rank, who.host) == (successor.run, successor.rank, successor.host)
        and settled.last_ns < successor.started_ns
    ]


def surplus(files: Mapping[Path, Settled]) -> list[Path]:
    """Return what has to go where runs that are over take too much room; never the newest one.

    The oldest go first, and flight recorders last: of a run that has ended by itself, a report is
    on disk.
    """
    left = [(path, settled) for path, settled in files.items() if settled.left_by is not None]
    found = []
    taken: Counter[Path] = Counter()
    for path, settled in sorted(
        left, key=lambda item: (item[1].died, item[1].last_ns), reverse=True
    ):
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
        _on_same(path, signature, os.unlink)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"the ring of an ended run cannot be removed ({error.strerror}); remove it, or give the daemon the right to"
    return ""


def date(path: Path, signature: Signature) -> None:
    """Put the time at which a run was seen to end on its file, for a daemon to come.

    That daemon shows the run for as long as this one does. Where it cannot be done, only the
    records say when that was.
    """
    with suppress(OSError):
        # Now, and no other time: that takes the right to write the file, not to own it.
        _on_same(path, signature, partial(os.utime, follow_symlinks=False))


def _on_same(path: Path, signature: Signature, act: Callable[..., None]) -> None:
    """Do something to the very file of ``signature``, unless another one took its place."""
    # Both by the descriptor of one directory: between a check and an unlink by path, somebody
    # could put a link in place of the directory, and root would remove a file elsewhere.
    with opened_directory(path.parent) as directory:
        status = os.stat(path.name, dir_fd=directory, follow_symlinks=False)
        if Signature.of(status).is_same_file(signature):
            act(path.name, dir_fd=directory)


def _room(directory: Path) -> float:
    """Return how much the runs that are over may take in ``directory``. Unit: bytes."""
    try:
        status = os.statvfs(directory)
    except OSError:
        return MAX_LEFT_BYTES
    size = status.f_frsize * status.f_blocks
    # A tmpfs without a limit says that it has no blocks.
    return min(MAX_LEFT_BYTES, size / 4) if size else MAX_LEFT_BYTES
