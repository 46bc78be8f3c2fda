"""Follows every ring from its first record to its end, and feeds the fleet.

A ring is *followed* while its writer lives, then *settled*: its records are in
the fleet, and the file stays. That of a run that has ended stays for as long as the
run is shown, so that a daemon that is started again shows it as well; that of a run
that died stays for a day, as its *flight recorder*. Both go sooner when the run is
started again, or when they take too much room.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ampwatch.errors import RingError
from ampwatch.host.daemon.discovery import Signature, find_rings
from ampwatch.host.daemon.settled import (
    FLIGHT_RECORDER_SECONDS,
    NEVER,
    Settled,
    date,
    predecessors,
    remove,
    surplus,
)
from ampwatch.host.fleet.fleet import Writer
from ampwatch.report.one_line import printable
from ampwatch.state.leftovers import forget_silence, save_leftovers
from ampwatch.wire.records import EndRecord, RunState, StepRecord
from ampwatch.wire.ring import RingReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ampwatch.host.fleet import Fleet
    from ampwatch.settings import Settings
    from ampwatch.wire.records import RunIdentity


MAX_READING_SECONDS = 1.0
"""Time of a poll after which no more rings of a user are read in it, but in the next one: who fills
hundreds of large rings again and again must not keep other users waiting. Unit: s."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Followed:
    """A ring that is being read."""

    reader: RingReader
    signature: Signature
    last_ns: int
    """Newest time its writer is known to have lived. Unit: ns."""
    read_at: float = -math.inf
    """Monotonic time at which it was read last. Unit: s."""
    is_shown: bool = False
    """True once the fleet knows it."""
    is_news: bool = False
    """True if this daemon is the first that sees its end: its writer was seen alive, or died or ended
    while no daemon was there."""
    is_silent: bool = False
    """True while its writer is alive and has not ended a step for long."""


class RingWatcher:
    """Keeps the fleet up to date with the rings on this machine.

    Args:
        directories: Returns where rings may be, each time anew.
        grace_seconds: A run that was over for longer when its ring was found is not shown, if a daemon
            was there at its end.
        read_until_ns: When the daemon before this one has read the rings last, as Unix time; infinite if
            that is not known. Unit: ns.
        leftovers: Where the reports go that processes have not written, and how many; ``None`` to write none.
        clock: Unix time. Unit: s.
        stopwatch: Monotonic time. Unit: s.
    """

    def __init__(
        self,
        fleet: Fleet,
        directories: Callable[[], Iterable[Path]],
        *,
        grace_seconds: float,
        read_until_ns: float = math.inf,
        any_user: bool = False,
        leftovers: Settings | None = None,
        clock: Callable[[], float] = time.time,
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._directories = directories
        self._grace_seconds = grace_seconds
        self._read_until_ns = read_until_ns
        self._any_user = any_user
        self._leftovers = leftovers
        self._clock = clock
        self._stopwatch = stopwatch
        self._followed: dict[Path, _Followed] = {}
        self._settled: dict[Path, Settled] = {}
        self._problems: dict[Path, str] = {}
        self._failed: dict[Path, str] = {}

    @property
    def num_followed(self) -> int:
        """Number of rings whose writer lives."""
        return len(self._followed)

    def poll(self) -> bool:
        """Find rings, read what is new in all of them, and tidy up.

        Returns:
            Whether all directories and files could be read.

        Cost: For a ring at rest an ``lstat``, a lock query and a read of its header.
        """
        found = find_rings(self._directories(), any_user=self._any_user)
        spent: defaultdict[int, float] = defaultdict(float)
        # The known ones first: a run that was restarted must find its predecessor dead.
        # Among them those that have waited longest.
        for path in sorted(self._followed, key=lambda path: self._followed[path].read_at):
            self._read_in_turn(path, found.rings.get(path), spent)
        for path, signature in found.rings.items():
            if self._take_up(path, signature):
                self._read_in_turn(path, signature, spent)
        self._tidy(found.rings)
        self._report_problems(found.problems)
        return not found.problems

    def close(self) -> None:
        """Close every ring; the files stay."""
        for ring in self._followed.values():
            ring.reader.close()
        self._followed.clear()

    def _take_up(self, path: Path, signature: Signature) -> bool:
        """Open ``path`` if it is new; return whether it is to be read now."""
        settled = self._settled.get(path)
        is_still = settled is not None and settled.is_still(signature)
        seems_dead = is_still and settled is not None and settled.died
        if path in self._followed or (is_still and not seems_dead):
            return False
        try:
            reader = RingReader(path)
        except RingError as error:
            is_leftover = error.writer_lives is False
            if is_leftover or not seems_dead:
                # What is left of another release stays as long as what is left of this one.
                ended_s = signature.modified_ns / 1e9
                self._settled[path] = Settled(
                    signature,
                    ended_s + FLIGHT_RECORDER_SECONDS if is_leftover else NEVER,
                    "" if is_leftover else str(error),
                    was_read=False,
                    is_foreign=bool(error.writer_lives),
                )
            return False
        # Replaced since it was listed: this file passed no check. The next poll lists it anew.
        is_replaced = reader.inode != signature.inode
        # A program that closes all its descriptors lets go of the lock as one that ends does. The
        # writer takes it again with its next record.
        if is_replaced or (seems_dead and not reader.writer_alive()):
            reader.close()
            return False
        if seems_dead:
            # Taken for dead: its ring is read from the oldest record again, as after a start of the daemon.
            self._fleet.forget(str(path))
            self._forget_report(reader.identity)
        self._settled.pop(path, None)
        self._followed[path] = _Followed(reader, signature, signature.modified_ns)
        self._release(predecessors(self._settled, path.parent, reader.identity))
        return True

    def _read_in_turn(
        self, path: Path, signature: Signature | None, spent: dict[int, float]
    ) -> None:
        """Read ``path``, unless its user has had a share of this poll already."""
        ring = self._followed[path]
        uid = ring.reader.uid
        if spent[uid] >= MAX_READING_SECONDS:
            return
        ring.read_at = started = self._stopwatch()
        self._read(path, signature)
        spent[uid] += self._stopwatch() - started

    def _read(self, path: Path, signature: Signature | None) -> None:
        """Feed what is new in ``path`` to the fleet; settle it if nothing more can come."""
        ring = self._followed[path]
        # Asked before reading: what is written in between is read now or next time. The other way
        # round, a writer that writes its last records and dies in between would lose them.
        alive = ring.reader.writer_alive()
        records = ring.reader.poll()
        times = (r.time_ns for r in records if isinstance(r, (StepRecord, EndRecord)))
        ring.last_ns = max([ring.last_ns, *times])
        ring.is_news = ring.is_news or alive or ring.last_ns > self._read_until_ns
        ended_at = self._end_of(ring)
        is_recent = self._clock() - ended_at <= self._grace_seconds
        try:
            if alive or ring.is_shown or is_recent:
                ring.is_shown = True
                self._fleet.apply(
                    str(path),
                    ring.reader.identity,
                    records,
                    alive=alive,
                    lost=ring.reader.lost,
                    dropped=ring.reader.dropped,
                    writer=Writer(ring.reader.writer_pid, ring.reader.uid),
                    ended_at=ended_at,
                )
        except Exception as error:
            # A boundary: records come from another process, of any release, and folding them can
            # fail in any way. One ring must not end the page of all others. Logged once, shown always.
            if path not in self._failed:
                logger.exception("records of %s cannot be taken in", printable(str(path)))
            self._failed[path] = f"records cannot be taken in: {error!r:.200}"
        self._detect_silence(path, ring)
        if any(isinstance(record, EndRecord) for record in records):
            self._settle(path, remove_after=ended_at + self._grace_seconds, is_over=True)
            self._save(path, ring, RunState.FINISHED)
        elif not alive:
            until = ring.last_ns / 1e9 + FLIGHT_RECORDER_SECONDS
            self._settle(path, remove_after=until, is_over=True, died=True)
            self._save(path, ring, RunState.FAILED)
        elif signature is not None and not signature.is_same_file(ring.signature):
            # Somebody put another file in its place, which is taken up right after this.
            self._settle(path, remove_after=NEVER)

    def _save(self, path: Path, ring: _Followed, state: RunState) -> None:
        """Write the report of a writer that has ended, is gone without a word, or is silent.

        Cost: the ring is read whole, 0.1 s.
        """
        if self._leftovers is None:
            return
        try:
            save_leftovers(path, ring.reader.identity, state, self._leftovers)
        except Exception as error:  # noqa: BLE001 - a boundary, see below
            # The bytes of a ring are another process's, of any release, torn where it was killed:
            # no list of errors is complete, and one run must not end the page of all others.
            text = "cannot write the report of run %s (%s): %s"
            logger.warning(text, ring.reader.identity.run, state.value, error)

    def _forget_report(self, identity: RunIdentity) -> None:
        """Remove the report of a writer that has ended a step after all, or has reported that it ends."""
        if self._leftovers is None:
            return
        try:
            forget_silence(identity, self._leftovers)
        except OSError as error:
            logger.warning("the report of run %s cannot be removed: %s", identity.run, error)

    def _detect_silence(self, path: Path, ring: _Followed) -> None:
        """Write the report when a writer that lives falls silent, and remove it when it goes on."""
        is_silent = self._fleet.state_of(str(path)) is RunState.STALE
        if is_silent and not ring.is_silent:
            self._save(path, ring, RunState.STALE)
        elif ring.is_silent and not is_silent:
            self._forget_report(ring.reader.identity)
        ring.is_silent = is_silent

    def _end_of(self, ring: _Followed) -> float:
        """Return when the run of a ring ended, if it has. Unit: s.

        That is now where its end is news, else the last that is known of it: its last record, or
        the date that the daemon before this one has put on the file.
        """
        now = self._clock()
        return now if ring.is_news else min(now, ring.last_ns / 1e9)

    def _settle(
        self, path: Path, *, remove_after: float, is_over: bool = False, died: bool = False
    ) -> None:
        ring = self._followed.pop(path)
        ring.reader.close()
        if is_over and ring.is_news:
            # A process that hung for an hour before it was killed has old records alone, as has one that
            # has ended an hour before there was a daemon.
            date(path, ring.signature)
        self._settled[path] = Settled(
            ring.signature,
            remove_after,
            left_by=ring.reader.identity if is_over else None,
            died=died,
            last_ns=ring.last_ns,
        )

    def _release(self, paths: Iterable[Path]) -> None:
        """Let files of runs that are over go at the end of this poll."""
        for path in paths:
            self._settled[path] = replace(self._settled[path], remove_after=0.0)

    def _tidy(self, rings: dict[Path, Signature]) -> None:
        """Remove the files whose time has come, forget those that are gone."""
        for path in self._settled.keys() - rings.keys():
            del self._settled[path]
        self._release(surplus(self._settled))
        now = self._clock()
        for path, settled in list(self._settled.items()):
            if now >= settled.remove_after:
                problem = remove(path, settled.signature)
                again = settled.remove_after if problem else NEVER
                self._settled[path] = replace(
                    settled, remove_after=again, problem=problem, left_by=None
                )
        # Of the fleet, not of the files: a run stays on the page for a while after its file has gone.
        for key in self._fleet.expired():
            self._fleet.forget(key)

    def _report_problems(self, problems: dict[Path, str]) -> None:
        """Show the problems there are now; log each one once."""
        self._failed = {path: text for path, text in self._failed.items() if path in self._followed}
        current = problems | {p: s.problem for p, s in self._settled.items() if s.problem}
        current |= self._failed
        with self._fleet.lock:
            for path in self._problems.keys() - current.keys():
                # Not ``forget``: the file may be a ring by now, whose records are there.
                self._fleet.problems.pop(str(path), None)
        for path, text in current.items():
            if self._problems.get(path) != text:
                # The name is whoever's who made the file: a line break in it would begin another line.
                logger.warning("%s: %s", printable(str(path)), text)
            # Again each time: the fleet may have forgotten the run, and with it the problem.
            self._fleet.note_problem(str(path), text)
        self._problems = current
