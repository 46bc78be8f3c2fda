"""The report at the end of a run: of the ranks of a machine that end together the first one prints it.

Each rank has left its box in the directory of reports when it closed, if it has something to report. It
waits a moment for the boxes of the others, and reads them. The one that ended first prints a report of
all that have ended by then, and the others add what differs. None is waited for that has not ended: a
launcher kills the others when one has failed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ampwatch.diagnosis.news import is_worse
from ampwatch.guard import Suppress
from ampwatch.report.report import render_boxes
from ampwatch.wire.blackbox import files
from ampwatch.wire.records import RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ampwatch.settings import Settings
    from ampwatch.wire.blackbox import Box

MAX_SECONDS = 1.0
"""Time that the end of a program waits for the other ranks. Unit: s."""

TOGETHER_NS = 5 * 10**8
"""Time after the end of the first rank within which the report of that one has the others' boxes. Half of
what it waits: a box is written in the other half. Unit: ns."""


def last_word(box: Box, settings: Settings, wait: Callable[[], object]) -> str:
    """Return what a rank is to print at its end; empty if another one prints it.

    Args:
        box: What it has to report.
        settings: Where the boxes of the others are.
        wait: Waits until the others have written theirs.
    """
    me = box.identity
    with Suppress(OSError):
        directory = files.report_directory(settings.report_dir)
        # Without a box of its own the others do not know of this rank either.
        if me.world_size > 1 and files.box_path(directory, me).exists():
            wait()
            others = [*_others(box, files.run_directory(directory, me.run))]
            # With the same rank: another job of this name, and nobody knows whose the others are.
            if all(other.identity.rank != me.rank for other in others):
                return _text(box, others)
    return render_boxes([box])


def _text(mine: Box, others: list[Box]) -> str:
    # A box that a daemon has written for a rank that was killed has no time of its end.
    before = [b for b in others if b.has_alarm and b.ended_ns > 0 and _end(b) < _end(mine)]
    if not before:
        return render_boxes(sorted([mine, *others], key=lambda b: b.identity.rank))
    if mine.ended_ns <= min(b.ended_ns for b in before) + TOGETHER_NS:
        return ""
    known = [finding for b in before for finding in b.findings]
    new = [
        f
        for f in mine.findings
        if all(is_worse(f.severity, k.severity) for k in known if k.key == f.key)
    ]
    adds = replace(mine, findings=new)
    # The others fail when one has.
    has_failed = mine.state is RunState.FAILED and all(b.state is not mine.state for b in before)
    return render_boxes([adds]) if adds.has_alarm or has_failed else ""


def _end(box: Box) -> tuple[int, int]:
    return box.ended_ns, box.identity.rank


def _others(box: Box, directory: Path) -> Iterator[Box]:
    """Yield the boxes of ranks of this machine that have ended since this one has begun."""
    me = box.identity
    for path in files.boxes_in(directory):
        boxes: list[Box] = []
        with Suppress(OSError):
            if path.stat().st_mtime_ns >= me.started_ns:
                boxes = files.read(path)
        for other in boxes:
            who = other.identity
            is_of_run = (who.run, who.world_size, who.host) == (me.run, me.world_size, me.host)
            ended_ns = other.ended_ns or other.written_ns
            if is_of_run and who.pid != me.pid and other.has_ended and ended_ns >= me.started_ns:
                yield other
