"""Makes the box of a run from the ring that it has left behind, or still writes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.errors import ReportError
from ampwatch.state.recorder import KEPT_STEPS, recorded
from ampwatch.wire.blackbox import files
from ampwatch.wire.blackbox.box import DIED, joined
from ampwatch.wire.records import RunState
from ampwatch.wire.ring import RingReader

if TYPE_CHECKING:
    from pathlib import Path

    from ampwatch.settings import Settings
    from ampwatch.wire.blackbox.box import Box
    from ampwatch.wire.records import RunIdentity

ENDED_STEPS = 64
"""Newest iterations in the report of a run that ended well: enough for the time of a step; some 50 kB a rank."""

SILENT = (
    "its process is alive, but has ended no step for a long time; look for a collective that not"
    " every rank has reached, or for a data loader that waits"
)


class RingContents(NamedTuple):
    """Contents of a ring.

    Attributes:
        box: The box of its writer.
        is_alive: Whether the writer lives and can still write.
    """

    box: Box
    is_alive: bool


def read_ring(path: Path, written_by: str, steps: int = KEPT_STEPS) -> RingContents:
    """Return what the ring at ``path`` says, from the oldest record that it still holds.

    Args:
        path: The ring.
        written_by: Who asks.
        steps: Newest iterations to keep (``Recorder``).

    Raises:
        RingError: If it is no ring of this layout.

    Cost:
        The whole ring is read and decoded: 0.1 s for one of the usual size.
    """
    reader = RingReader(path)
    try:
        # Before the records, as ``RingReader`` asks for: a writer that ends in between has then
        # still had its last word read.
        is_alive = reader.writer_alive()
        recorder = recorded(reader.identity, reader.poll(), steps)
        lost = reader.dropped
    finally:
        reader.close()
    box = recorder.box(written_by, time.time_ns())
    if recorder.end is None and not is_alive:
        box.state, box.reason = RunState.FAILED, DIED
    if lost:
        box.notes.append(f"{lost} records could not be written")
    return RingContents(box, is_alive)


def known_of(identity: RunIdentity, directory: Path) -> Box | None:
    """Return the box that is on disk of a process, if there is one that can be read."""
    try:
        boxes = files.read(files.box_path(directory, identity))
    except ReportError:
        return None
    return next((box for box in boxes if box.identity == identity), None)


def save_leftovers(path: Path, identity: RunIdentity, state: RunState, settings: Settings) -> None:
    """Write the box of a process that has not done so itself.

    A process with an alarming finding and one that fails write their own. Nothing is written for a run
    without a step.

    Args:
        path: Its ring.
        identity: Who is known to write it; nothing is written for another one.
        state: ``FAILED`` for a process that has died, ``STALE`` for one that hangs, ``FINISHED`` for one
            that has reported its end.
        settings: Where boxes are, and how many; those of the daemon, which the training that starts one hands on.

    Raises:
        OSError: If the ring cannot be read, or the box not written.
    """
    if not settings.report_files:
        return
    directory = files.report_directory(settings.report_dir)
    known, has_ended = known_of(identity, directory), state is RunState.FINISHED
    # By the process itself, or by an earlier daemon, which has found this ring as well.
    if has_ended and files.box_path(directory, identity).with_suffix(files.CALM).exists():
        return
    was_taken_for_dead = has_ended and known is not None and known.reason == DIED
    if known is not None and known.state in (RunState.FAILED, state) and not was_taken_for_dead:
        return
    box, _ = read_ring(path, "daemon", ENDED_STEPS if has_ended else KEPT_STEPS)
    if box.identity != identity:
        return
    if box.state is RunState.FINISHED and not (has_ended and box.steps):
        return
    if state is RunState.STALE and not box.has_ended:
        box.state, box.reason = state, SILENT
    if known is not None:
        box = joined(known, box)
    is_calm = box.state is RunState.FINISHED and known is None and not box.has_alarm
    files.write(directory, box, settings.report_files, is_calm=is_calm)


def forget_silence(identity: RunIdentity, settings: Settings) -> None:
    """Remove the box of a process that seemed to hang or to be dead, and has gone on."""
    directory = files.report_directory(settings.report_dir)
    known = known_of(identity, directory)
    if known is None or known.has_alarm:
        return
    if known.state is RunState.STALE or (known.state is RunState.FAILED and known.reason == DIED):
        files.remove(directory, identity)
