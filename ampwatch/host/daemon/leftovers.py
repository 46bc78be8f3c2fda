"""Finds what runs have left on this machine, or still write: rings and reports, together."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.errors import ReportError, RingError
from ampwatch.host.daemon.discovery import find_rings
from ampwatch.host.fleet.jobs import together
from ampwatch.host.fleet.rank import STALE_STEPS
from ampwatch.runtime import RING_SUFFIX, ring_directories
from ampwatch.state.leftovers import SILENT, read_ring
from ampwatch.wire.blackbox import files
from ampwatch.wire.blackbox.box import joined
from ampwatch.wire.records import RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from ampwatch.settings import Settings
    from ampwatch.wire.blackbox import Box

VANISHED = (
    "It did not report its end, and left no ring on this machine: killed, out of memory, or"
    " still running elsewhere"
)
WAS_RUNNING = "It was running when this was written"


class Leftovers(NamedTuple):
    """Leftovers of runs.

    Attributes:
        boxes: One for each process, the one that started first first.
        problems: Why a file cannot be read, in sentences.
    """

    boxes: list[Box]
    problems: list[str]


def find_leftovers(
    settings: Settings,
    run: str | None = None,
    clock: Callable[[], float] = time.time,
) -> Leftovers:
    """Read the rings and the reports of this user on this machine, of one run or of all.

    Cost: 0.1 s for each ring and some ms for each report.
    """
    problems: list[str] = []
    found = {box.identity: box for box in _on_disk(settings, run, problems)}
    places = ring_directories(settings.ring_dir, settings.runtime_dir)
    in_rings = {}
    for path in find_rings(places, any_user=False).rings:
        try:
            # Not ``RingWatcher``: this runs beside a daemon, and must remove none of its files.
            read = read_ring(path, "report")
        except RingError as error:
            # Else it has just ended, or is what a process of another release has left.
            if path.exists() and error.writer_lives is not False:
                problems.append(str(error))
            continue
        box = read.box
        if run in (None, box.identity.run):
            if read.is_alive and is_silent(box, clock(), settings.stale_seconds):
                box.state, box.reason = RunState.STALE, SILENT
            in_rings[box.identity] = box
    for identity, box in found.items():
        if identity not in in_rings and box.state is RunState.RUNNING:
            box.reason = VANISHED
    # The ring goes over the report: it was written until the end, the report until a finding.
    for identity, box in in_rings.items():
        found[identity] = joined(found[identity], box) if identity in found else box
        if not box.has_ended:
            found[identity].reason = box.reason  # how it goes the ring knows better
    boxes = sorted(found.values(), key=lambda box: (box.identity.started_ns, box.identity.rank))
    return Leftovers(boxes, problems)


def read_path(path: Path) -> list[Box]:
    """Return the boxes in a report, in a ring, or in all reports of a directory.

    Raises:
        ReportError: If there is none that can be read.
    """
    if path.is_dir():
        inside = [p for p in sorted(path.rglob(f"*{files.SUFFIX}")) if not p.name.startswith(".")]
        boxes = [box for each in inside for box in files.read(each)]
        if not boxes:
            msg = f"expected reports in the directory {str(path)!r}, found none"
            raise ReportError(msg)
    else:
        try:
            boxes = [read_ring(path, "report", _EVERYTHING).box]
        except RingError as refusal:
            if path.suffix == RING_SUFFIX:  # of another release, or damaged
                raise ReportError(str(refusal)) from None
            boxes = files.read(path)
    for box in boxes:
        if box.state is RunState.RUNNING and not box.reason:
            box.reason = WAS_RUNNING
    return boxes


_EVERYTHING = 4096
"""Steps that are taken from a ring that somebody names."""


def jobs(boxes: Iterable[Box]) -> list[list[Box]]:
    """Return the boxes of each job, by rank; the job that started first first."""
    in_order = sorted(boxes, key=lambda box: box.identity.started_ns)
    found = together(in_order, lambda box: box.identity.run)
    return [[job[rank] for rank in sorted(job)] for job in found]


def is_silent(box: Box, now: float, stale_seconds: float) -> bool:
    """Return whether a process that is alive may hang, as its newest step is long before Unix time ``now`` in s."""
    silence = now - box.last_ns / 1e9
    known = [s.duration_s for s in box.steps[-32:] if s.duration_s > 0]
    usual = statistics.median(known) if known else 0.0
    return silence > stale_seconds and silence > STALE_STEPS * usual


def _on_disk(settings: Settings, run: str | None, problems: list[str]) -> Iterable[Box]:
    directory = files.report_directory(settings.report_dir)
    for path in files.paths(directory):
        if run is not None and path.parent != files.run_directory(directory, run):
            continue
        try:
            boxes = files.read(path)
        except ReportError as error:
            problems.append(str(error))
            continue
        yield from (box for box in boxes if run in (None, box.identity.run))
