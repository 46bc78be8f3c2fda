"""Writes the box of a training process: when a finding is made, a while after it, and at the end."""

from __future__ import annotations

import os
import time
from _thread import start_new_thread
from threading import Event
from typing import TYPE_CHECKING

from ampwatch.guard import Log, Suppress, is_of_a_signal
from ampwatch.wire.blackbox.files import report_directory, write
from ampwatch.wire.records import FindingRecord, RunState, StepRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.settings import Settings
    from ampwatch.state.recorder import Recorder
    from ampwatch.wire.blackbox.box import Box
    from ampwatch.wire.records import Record

logger = Log()

AT_ONCE = 16
"""Findings that are written the moment they are made. A broken large model makes one after
the other; of the rest the ring has a copy."""

SHARE = 0.01
"""Share of the time that writing may take after that: putting a box into words holds the GIL."""

PATIENCE_S = 5.0
"""How long the end of a run waits for a box that is being written. Unit: s."""

AFTERMATH = 16
"""Steps after a finding after which the box is written again, and after each fourfold: what
came of it belongs to the evidence."""


class BoxWriter:
    """Takes the records of one training process, and writes its box where one is due.

    Args:
        recorder: Remembers what goes into the box.
        settings: Where boxes are, and how many.
        describe: Adds to a box what the recorder does not know.

    Attributes:
        failures: How often the box could not be written: no room, no rights.
        written: Set while no thread writes.

    Cost:
        A comparison a record. To write, what is remembered is copied: half a millisecond. It is put
        into words and written (``files.write``) in a thread of its own, which ends with that.
    """

    def __init__(
        self, recorder: Recorder, settings: Settings, describe: Callable[[Box], None]
    ) -> None:
        self.failures = 0
        self.written = Event()
        self.written.set()
        self._error: Exception | None = None
        self._recorder = recorder
        self._settings = settings
        self._describe = describe
        self._pid = os.getpid()
        self._alarms = self._explained = 0
        self._at_once = AT_ONCE
        self._last_ns = 0
        self._last_spent_ns = 0
        self._is_overdue = False
        self._next_step = -1
        self._wait = AFTERMATH

    def put(self, *records: Record) -> None:
        """Take in records; write the box if a finding is new, or it is time again."""
        self._recorder.apply(*records)
        for record in records:
            if isinstance(record, StepRecord):
                if self._is_overdue or 0 <= self._next_step <= record.step:
                    self._write_later(record.step)
            elif isinstance(record, FindingRecord):
                self._write_soon()

    def _write_later(self, step: int) -> None:
        """Write the box if what came of a finding is to be seen by this step, or it is overdue."""
        late = 0 <= self._next_step <= step
        # Rarer and rarer: what comes of a finding shows soon, and writing costs the step it is in.
        if late:
            self._wait *= 4
            self._next_step = step + self._wait
        if late or self._may_write():
            self.write()

    def _write_soon(self) -> None:
        """Write the box, or have it be written at the next step, if a finding is new or explained."""
        if self._recorder.num_alarms != self._alarms:
            self._alarms = self._recorder.num_alarms
            self._explained = self._recorder.num_explained
            self._wait = AFTERMATH
            newest = self._recorder.newest
            self._next_step = AFTERMATH - 1 if newest is None else newest.step + AFTERMATH
            if self._may_write():
                self.write()
            else:
                self._is_overdue = True
        elif self._recorder.num_explained != self._explained:
            # The next step is soon enough: by then all that belongs together is attached.
            self._explained = self._recorder.num_explained
            self._is_overdue = self._alarms > 0

    def close(self) -> None:
        """Write the last state of a run that has an alarming finding or has failed; no other."""
        end = self._recorder.end
        failed = end is not None and end.state is RunState.FAILED
        if self._writes and (failed or self._recorder.num_alarms):
            # What is on its way comes first.
            self.written.wait(PATIENCE_S)
            self._heed()
            self._write(self._box())
            self._heed()

    @property
    def _writes(self) -> bool:
        """Whether this process writes. A forked child does not: the box is its parent's."""
        return os.getpid() == self._pid and self._settings.report_files > 0

    def write(self) -> None:
        """Begin to write the box as it is now; with a later record if one is being written."""
        if not self._writes:
            return
        self._is_overdue = not self.written.is_set()
        if self._is_overdue:
            return
        self._heed()
        box = self._box()
        self.written.clear()
        # Without one where none is to be had, or the interpreter has begun to end.
        with Suppress(RuntimeError, MemoryError):
            # No Thread: its start() waits for ever for a thread that has no memory to begin.
            start_new_thread(self._write, (box,))
            return
        self._write(box)
        self._heed()

    def _box(self) -> Box:
        box = self._recorder.box("training", time.time_ns())
        self._describe(box)
        return box

    def _write(self, box: Box) -> None:
        began = time.perf_counter_ns()
        try:
            write(report_directory(self._settings.report_dir), box, self._settings.report_files)
        except Exception as error:  # noqa: BLE001 - of a thread that nobody waits for
            self._error = error
        finally:
            now = time.perf_counter_ns()
            self._last_ns, self._last_spent_ns = now, now - began
            self.written.set()

    def _heed(self) -> None:
        """Raise or report what ``_write`` has met: a thread logs nothing itself, which would leave a trace."""
        error, self._error = self._error, None
        if error is None:
            return
        if not isinstance(error, OSError) or is_of_a_signal(error):
            raise error
        # No room, no rights: reported once, tried again with the next finding.
        self.failures += 1
        if self.failures == 1:
            logger.warning(
                "cannot write the report: %s; training is not affected",
                error,
            )

    def _may_write(self) -> bool:
        if self._at_once:
            self._at_once -= 1
            return True
        waited = time.perf_counter_ns() - self._last_ns
        return waited * SHARE >= self._last_spent_ns
