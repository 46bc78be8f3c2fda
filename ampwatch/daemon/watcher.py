"""Follows every ring from its first record to its end, and feeds the fleet.

A ring is *followed* while its writer lives, then *settled*: what it said is in
the fleet, and the file is removed (the run closed it) or stays for a day as the
flight recorder of a run that died.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ampwatch.daemon.discovery import Signature, find_rings
from ampwatch.errors import RingError
from ampwatch.records import EndRecord, StepRecord
from ampwatch.ring import RingReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ampwatch.aggregate import Fleet
    from ampwatch.records import Record

FLIGHT_RECORDER_SECONDS = 86400.0
"""How long the ring of a writer that died stays on disk: long enough to look at last
night's crash, short enough that shared memory does not fill with the dead."""

NEVER = float("inf")

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Followed:
    """A ring that is being read."""

    reader: RingReader
    signature: Signature
    last_ns: int
    """Newest time its writer is known to have lived. Unit: ns."""


@dataclass(frozen=True, slots=True)
class _Settled:
    """A file that is not read any more."""

    signature: Signature
    remove_after: float
    """Unix time from which the file is removed."""
    problem: str = ""
    """Why it cannot be read, if so."""

    def is_still(self, signature: Signature) -> bool:
        """Tell whether there is nothing new to read in the file that has ``signature`` now.

        A ring that was read to its end stays read: mapped memory reaches the time stamp of
        its file late. A file that could not be read may have become a ring meanwhile.
        """
        if self.problem:
            return signature == self.signature
        return signature.is_same_file(self.signature)


class RingWatcher:
    """Keeps the fleet up to date with the rings on this machine.

    Args:
        fleet: Where the records go.
        directories: Tells where to look, each time anew.
        any_user: Read every user's rings.
        clock: Unix time. Unit: s.
    """

    def __init__(
        self,
        fleet: Fleet,
        directories: Callable[[], Iterable[Path]],
        *,
        any_user: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._fleet = fleet
        self._directories = directories
        self._any_user = any_user
        self._clock = clock
        self._followed: dict[Path, _Followed] = {}
        self._settled: dict[Path, _Settled] = {}
        self._problems: dict[Path, str] = {}

    @property
    def num_followed(self) -> int:
        """How many rings have a writer that lives."""
        return len(self._followed)

    def poll(self) -> bool:
        """Look for rings, read what is new in all of them, and tidy up.

        Returns:
            Whether everything that was to be looked into could be.

        Cost:
            For a ring at rest an ``lstat``, a lock query and a read of its header.
        """
        found = find_rings(self._directories(), any_user=self._any_user)
        # The known ones first: a run that was restarted must find its predecessor dead.
        for path in list(self._followed):
            self._read(path, found.rings.get(path))
        for path, signature in found.rings.items():
            if self._take_up(path, signature):
                self._read(path, signature)
        self._tidy(found.rings)
        self._tell_problems(found.problems)
        return not found.problems

    def close(self) -> None:
        """Close every ring; the files stay."""
        for ring in self._followed.values():
            ring.reader.close()
        self._followed.clear()

    def _take_up(self, path: Path, signature: Signature) -> bool:
        """Open ``path`` if it is new; tell whether it is to be read now."""
        settled = self._settled.get(path)
        if path in self._followed or (settled is not None and settled.is_still(signature)):
            return False
        try:
            reader = RingReader(path)
        except RingError as error:
            self._settled[path] = _Settled(signature, NEVER, str(error))
            return False
        self._settled.pop(path, None)
        self._followed[path] = _Followed(reader, signature, signature.modified_ns)
        return True

    def _read(self, path: Path, signature: Signature | None) -> None:
        """Feed what is new in ``path`` to the fleet; settle it if nothing more can come."""
        ring = self._followed[path]
        # Asked before reading: what is written in between is read now or next time.
        alive = ring.reader.writer_alive()
        records = ring.reader.poll()
        self._fleet.apply(
            str(path),
            ring.reader.identity,
            records,
            alive=alive,
            lost=ring.reader.lost,
            dropped=ring.reader.dropped,
        )
        ring.last_ns = max([ring.last_ns, *_times(records)])
        if any(isinstance(record, EndRecord) for record in records):
            self._settle(path, remove_after=0.0)
        elif not alive:
            self._settle(path, remove_after=ring.last_ns / 1e9 + FLIGHT_RECORDER_SECONDS)
        elif signature is not None and not signature.is_same_file(ring.signature):
            # Somebody put another file in its place, which is taken up right after this.
            self._settle(path, remove_after=NEVER)

    def _settle(self, path: Path, *, remove_after: float) -> None:
        ring = self._followed.pop(path)
        ring.reader.close()
        self._settled[path] = _Settled(ring.signature, remove_after)

    def _tidy(self, rings: dict[Path, Signature]) -> None:
        """Remove the files whose time has come, forget those that are gone."""
        now = self._clock()
        for path, settled in list(self._settled.items()):
            if path not in rings:
                del self._settled[path]
            elif now >= settled.remove_after:
                self._settled[path] = replace(settled, remove_after=NEVER)
                _remove(path, settled.signature)
        for key in self._fleet.expired():
            self._fleet.forget(key)

    def _tell_problems(self, problems: dict[Path, str]) -> None:
        """Show the problems there are now; log each one once."""
        current = problems | {p: s.problem for p, s in self._settled.items() if s.problem}
        with self._fleet.lock:
            for path in self._problems.keys() - current.keys():
                # Not ``forget``: the file may be a ring by now, whose records are there.
                self._fleet.problems.pop(str(path), None)
        for path, text in current.items():
            if self._problems.get(path) != text:
                logger.warning("%s: %s", path, text)
                self._fleet.note_problem(str(path), text)
        self._problems = current


def _times(records: Iterable[Record]) -> list[int]:
    return [r.time_ns for r in records if isinstance(r, (StepRecord, EndRecord))]


def _remove(path: Path, signature: Signature) -> None:
    """Remove the very file that was read; leave one that took its place, or that is not ours."""
    try:
        status = path.lstat()
        if (status.st_dev, status.st_ino) == (signature.device, signature.inode):
            path.unlink()
    except OSError as error:
        logger.info("the ring %s stays: %s", path, error.strerror)
