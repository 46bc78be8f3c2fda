"""Runs that have ended, read from their reports when somebody asks for them.

The reports are those of the daemon's own user, in the one directory that its settings name. Only runs that the
list has can be opened: no part of a request becomes a path. Files are read without trust (``document.py``),
at most so many and so large; of what was read the rows of the list are kept, until a file changes.
"""

from __future__ import annotations

import os
import time
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.errors import ReportError
from ampwatch.host.daemon.leftovers import VANISHED, jobs
from ampwatch.host.fleet.jobs import START_WINDOW_NS
from ampwatch.report.run_list import RunRow, row_of
from ampwatch.wire.blackbox import files
from ampwatch.wire.records import RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from ampwatch.host.fleet import Fleet
    from ampwatch.wire.blackbox import Box
    from ampwatch.wire.records import RunIdentity


DAYS = 30
"""Reports that were written longer ago are not listed. Unit: days."""

MAX_RUNS = 200
"""Runs that are listed, the newest."""

MAX_FILES = 1024
"""Files that are read, the newest."""

MAX_FILE_BYTES = 8 << 20
"""Size of a file that is read. That of a rank has 0.1 to 1 MB. Unit: B."""

MAX_BYTES = 128 << 20
"""Size of all files that are read. Unit: B."""

MACHINE = (
    "This daemon shows the runs of every user of the machine. It shows no reports: they are for their user"
    " alone. `ampwatch report --all` lists yours."
)

OPEN_TO_ALL = (
    "This daemon answers everybody who can connect. It shows no reports: they have tracebacks, settings and"
    " source lines. `ampwatch report --all` lists them."
)


class File(NamedTuple):
    """A file as it was when it was listed.

    Attributes:
        written_ns: When it was written, as Unix time. Unit: ns.
        size: Unit: B.
    """

    path: Path
    written_ns: int
    size: int


class Ended(NamedTuple):
    """A run of the list.

    Attributes:
        ranks: The processes that wrote its reports.
        files: The files, with other runs in them where these started at nearly the same time.
    """

    row: RunRow
    ranks: frozenset[RunIdentity]
    files: tuple[File, ...]


class Listing(NamedTuple):
    """The list.

    Attributes:
        rows: The runs, the newest first.
        num_left_out: Runs and files that are older than these, for which there is no room.
        problems: Why a file cannot be read, in sentences.
        picked: What the ranks of each run that was asked for have left; nothing of one that is not listed.
    """

    rows: list[RunRow]
    num_left_out: int
    problems: list[str]
    picked: list[list[Box]]


class EndedRuns:
    """The runs that have ended, of the user of the daemon. For one thread at a time.

    Args:
        fleet: What the daemon shows: a run in it that still goes on has not ended.
        refusal: Returns why reports are not shown, empty if they are.
        clock: Unix time. Unit: s.

    Cost:
        The first list takes some ms for each report, a later one some us for each that has not changed.
    """

    def __init__(
        self,
        fleet: Fleet,
        report_dir: str,
        *,
        refusal: Callable[[], str] = str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._fleet = fleet
        self._report_dir = report_dir
        self.refusal = refusal
        self._clock = clock
        self._known: dict[tuple[File, ...], tuple[list[Ended], list[str]]] = {}

    @property
    def directory(self) -> str:
        """Where the reports are; empty if there is no such place."""
        try:
            return str(files.report_directory(self._report_dir))
        except ReportError:
            return ""

    def listing(self, picked: Sequence[str] = ()) -> Listing:
        """Return the list as it is now, and the runs of these keys."""
        found, num_left_out = self._found()
        wait = self._fleet.priority.step_aside
        self._known = {
            group: self._known.get(group) or _ended(group, wait)
            for group in _started_together(found)
        }
        with self._fleet.lock:
            live = {rank.identity for rank in self._fleet.ranks() if not rank.ended}
        ended = [
            each
            for runs, _ in self._known.values()
            for each in runs
            if each.row.has_ended or not each.ranks & live
        ]
        ended.sort(key=lambda each: each.row.started_ns, reverse=True)
        shown, rest = ended[:MAX_RUNS], ended[MAX_RUNS:]
        by_key = {each.row.key: each for each in reversed(shown)}
        return Listing(
            [each.row for each in shown],
            num_left_out + len(rest),
            [text for _, texts in self._known.values() for text in texts],
            [_boxes(by_key[key], wait) if key in by_key else [] for key in picked],
        )

    def _found(self) -> tuple[list[File], int]:
        """Return the files to read, and how many more there are."""
        if not self.directory:
            return [], 0
        since_ns = (self._clock() - DAYS * 86400) * 1e9
        found = []
        for path in files.paths(files.report_directory(self._report_dir)):
            try:
                status = os.stat(path)  # noqa: PTH116 - with the error of the system
            except OSError:  # it has just gone
                continue
            if status.st_mtime_ns >= since_ns:
                found.append(File(path, status.st_mtime_ns, status.st_size))
        # Names begin with the time of the start.
        found.sort(key=lambda file: file.path.name, reverse=True)
        kept, size = list[File](), 0
        for file in found[:MAX_FILES]:
            size += min(file.size, MAX_FILE_BYTES)
            if size > MAX_BYTES:
                break
            kept.append(file)
        return kept, len(found) - len(kept)


def _started_together(found: Iterable[File]) -> Iterator[tuple[File, ...]]:
    """Yield the files whose ranks may be of one run: of one directory, and of nearly the same start."""
    by_directory = sorted(found, key=lambda file: (file.path.parent, file.path.name))
    for _, inside in groupby(by_directory, key=lambda file: file.path.parent):
        group, newest_ns = list[File](), 0
        for file in inside:
            started_ns = _started_ns(file.path.name)
            if group and started_ns - newest_ns > START_WINDOW_NS:
                yield tuple(group)
                group = []
            group.append(file)
            newest_ns = started_ns
        yield tuple(group)


def _started_ns(name: str) -> int:
    """Return the time of the start that the name of a report begins with, as Unix time; 0 if it has none. Unit: ns."""
    try:
        began = datetime.strptime(name.partition("-")[0], "%Y%m%dT%H%M%S.%f%z")
    except ValueError:
        return 0
    return round(began.timestamp() * 1e9)


def _ended(group: tuple[File, ...], wait: Callable[[], None]) -> tuple[list[Ended], list[str]]:
    boxes, problems = _boxes_of(group, wait)
    ended = []
    for job in jobs(boxes):
        ended.append(Ended(row_of(job), frozenset(box.identity for box in job), group))
        wait()
    return ended, problems


def _boxes(run: Ended, wait: Callable[[], None]) -> list[Box]:
    """Return what the ranks of a run have left."""
    boxes, _ = _boxes_of(run.files, wait)
    return next((job for job in jobs(boxes) if row_of(job).key == run.row.key), [])


def _boxes_of(group: Sequence[File], wait: Callable[[], None]) -> tuple[list[Box], list[str]]:
    boxes: list[Box] = []
    problems: list[str] = []
    for file in group:
        try:
            boxes += files.read(file.path, MAX_FILE_BYTES)
        except ReportError as error:
            problems.append(str(error))
        wait()
    for box in boxes:
        if box.state is RunState.RUNNING and not box.reason:
            box.reason = VANISHED
    return boxes, problems
