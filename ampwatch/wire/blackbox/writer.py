"""Writes the box of a training process: when a finding is made, a while after it, and at the end."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ampwatch.guard import Log, is_of_a_signal
from ampwatch.wire.blackbox.files import report_directory, write
from ampwatch.wire.records import RunState, StepRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.settings import Settings
    from ampwatch.wire.blackbox.box import Box
    from ampwatch.wire.blackbox.recorder import Recorder
    from ampwatch.wire.records import Record

logger = Log()

AT_ONCE = 16
"""Findings that are written the moment they are made. A broken large model makes one after
the other; of the rest the ring has a copy."""

SHARE = 0.01
"""Share of the time that writing may take after that: a slow file system must not slow the
training down for long."""

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
        spent_ns: Time spent on writing so far. Unit: ns.

    Cost:
        A comparison a record. What it costs to write: ``files.write``, on the training thread.
    """

    def __init__(
        self, recorder: Recorder, settings: Settings, describe: Callable[[Box], None]
    ) -> None:
        self.failures = 0
        self.spent_ns = 0
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
        for record in records:
            self._put(record)

    def _put(self, record: Record) -> None:
        self._recorder.put(record)
        if isinstance(record, StepRecord):
            late = 0 <= self._next_step <= record.step
            # Rarer and rarer: what comes of a finding shows soon, and writing costs the step it is in.
            if late:
                self._wait *= 4
                self._next_step = record.step + self._wait
            if late or (self._is_overdue and self._may_write()):
                self.write()
        elif self._recorder.num_alarms != self._alarms:
            self._alarms = self._recorder.num_alarms
            self._explained = self._recorder.num_explained
            self._wait = AFTERMATH
            self._next_step = self._recorder.newest_step + AFTERMATH
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
        if failed or self._recorder.num_alarms:
            self.write()

    def write(self) -> None:
        """Write the box now. A forked child writes nothing: the box is its parent's."""
        if os.getpid() != self._pid or not self._settings.report_files:
            return
        began = time.perf_counter_ns()
        self._is_overdue = False
        try:
            box = self._recorder.box("training", time.time_ns())
            self._describe(box)
            write(report_directory(self._settings.report_dir), box, self._settings.report_files)
        except OSError as error:
            if is_of_a_signal(error):
                raise
            # No room, no rights: reported once, tried again with the next finding.
            self.failures += 1
            if self.failures == 1:
                logger.warning(
                    "expected to write a report of what went wrong, got: %s; training is not affected",
                    error,
                )
        now = time.perf_counter_ns()
        self._last_ns, self._last_spent_ns = now, now - began
        self.spent_ns += now - began

    def _may_write(self) -> bool:
        if self._at_once:
            self._at_once -= 1
            return True
        waited = time.perf_counter_ns() - self._last_ns
        return waited * SHARE >= self._last_spent_ns
