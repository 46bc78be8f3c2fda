"""Remembers the newest evidence of a run, and that around each finding, in bounded memory."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from ampwatch.state.rank import RankState
from ampwatch.wire.blackbox.box import Box
from ampwatch.wire.blackbox.culprit import module_of
from ampwatch.wire.records import (
    ALL_MODULES,
    DevicePhasesRecord,
    FindingRecord,
    RangeRecord,
    RunState,
    Severity,
    StepRecord,
    Topic,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ampwatch.wire.records import Finding, Record, RunIdentity

MAX_MEASURED = 4096
"""Modules and topics whose newest measurement is remembered."""

MAX_RANGES = 64
"""Measurements in a box; those of culprits come first."""

MAX_TIMED = 32
"""Newest iterations kept of those that a device has timed, one of four: of as many steps as reports take
together (``report.step_times``)."""

STEP_BYTES = 300
RANGE_BYTES = 1300
"""Bytes of a record of a step, and of a measurement, with what they refer to: measured
with tracemalloc."""

BLOCKS_BYTES = 4000
"""Bytes of the blocks of a measurement that has them: 4 levels of 48 counts for each of two sizes."""

KEPT_STEPS = 256
"""Newest iterations that a report holds."""

KEPT_SPANS = 4
"""Steps around findings that are kept for good, in multiples of the newest that are kept."""


class Recorder(RankState):
    """The state of a rank with the evidence around its findings, of which it makes a ``Box``.

    The same in the training process and where a ring is read: the records are the same.

    Args:
        identity: Whose records they are.
        steps: How many of the newest iterations to keep; half as many before and a quarter
            after each finding are kept for good, up to ``KEPT_SPANS`` times as many in all.

    Cost:
        Below a microsecond a record. Some 400 bytes for each step that is kept,
        and a kilobyte for each module and topic that was measured.
    """

    def __init__(self, identity: RunIdentity, steps: int = KEPT_STEPS) -> None:
        super().__init__(identity)
        self._before, self._after = steps // 2, steps // 4
        self._most_kept = KEPT_SPANS * steps
        self._steps: deque[StepRecord] = deque(maxlen=steps)
        self._kept_steps: dict[int, StepRecord] = {}
        self._keep_until = -1
        self._ranges: dict[tuple[Topic, str], RangeRecord] = {}
        self._pinned: dict[tuple[int, Topic, str], RangeRecord] = {}
        self._awaited: dict[str, int] = {}
        self._alarms: set[str] = set()
        self._explained: set[str] = set()
        self._timed: deque[DevicePhasesRecord] = deque(maxlen=MAX_TIMED)

    @property
    def nbytes(self) -> int:
        """What is remembered, as an estimate. Unit: B."""
        steps = len(self._steps) + len(self._kept_steps)
        ranges = [*self._ranges.values(), *self._pinned.values()]
        blocks = sum(1 for record in ranges if record.blocks)
        of_ranges = RANGE_BYTES * len(ranges) + BLOCKS_BYTES * blocks
        return STEP_BYTES * steps + of_ranges

    @property
    def num_alarms(self) -> int:
        """Number of findings so far that are warnings or worse."""
        return len(self._alarms)

    @property
    def num_explained(self) -> int:
        """Number of findings so far that others explain."""
        return len(self._explained)

    @property
    def gradients(self) -> list[RangeRecord]:
        """The newest measurement of gradients: of all together, first, and of each module.

        Cost: 0.1 us for each topic and module that was measured.
        """
        every = self._ranges.get((Topic.GRADIENT, ALL_MODULES))
        if every is None:
            return []
        modules = (r for (topic, _), r in self._ranges.items() if topic is Topic.GRADIENT)
        return [every, *(r for r in modules if r is not every and r.step == every.step)]

    def box(self, written_by: str, written_ns: int) -> Box:
        """Return what is remembered now.

        Args:
            written_by: Who asks: ``training``, ``daemon`` or ``report``.
            written_ns: Unix time. Unit: ns.
        """
        steps = self._kept_steps | {s.step: s for s in self._steps}
        end = self.end
        return Box(
            identity=self.identity,
            state=RunState.RUNNING if end is None else end.state,
            reason="" if end is None else end.reason,
            ended_ns=0 if end is None else end.time_ns,
            written_ns=written_ns,
            written_by=written_by,
            facts=dict(self.facts),
            # They are updated in place while the run goes on.
            findings=[replace(f, evidence=dict(f.evidence)) for f in self.findings.values()],
            steps=[steps[index] for index in sorted(steps)],
            optimizers=[self.optimizers[index] for index in sorted(self.optimizers)],
            ranges=self._chosen_ranges(),
            sampling=self.totals,
            failures=list(self.failures.values()),
            device_phases=list(self._timed),
        )

    def _put_step(self, record: StepRecord) -> None:
        super()._put_step(record)
        self._steps.append(record)
        if record.step <= self._keep_until and len(self._kept_steps) < self._most_kept:
            self._kept_steps[record.step] = record

    def _put_range(self, record: RangeRecord) -> None:
        super()._put_range(record)
        key = record.topic, record.module
        if not record.blocks and key in self._ranges:
            # Blocks are measured in some of the samples: the newest there are stay.
            record = structs.replace(record, blocks=self._ranges[key].blocks)
        if key in self._ranges or len(self._ranges) < MAX_MEASURED:
            self._ranges[key] = record
        # The first measurement after a finding may be the one that shows it.
        since = self._awaited.get(record.module)
        if since is not None and record.step >= since:
            self._pin(record)

    def _put_device_phases(self, record: DevicePhasesRecord) -> None:
        self._timed.append(record)

    def _put_finding(self, record: FindingRecord) -> None:
        super()._put_finding(record)
        finding, key = record.finding, record.finding.key
        if key not in self.findings:  # there are too many
            return
        if not finding.root:
            self._explained.add(key)
        # Some begin as an information and become a warning when they last.
        if finding.severity is not Severity.INFO and key not in self._alarms:
            self._alarms.add(key)
            self._keep_around(finding)

    def _keep_around(self, finding: Finding) -> None:
        newest = -1 if self.newest is None else self.newest.step
        # Within the span of an earlier finding all of this is kept already.
        if newest > self._keep_until:
            for step in list(self._steps)[-self._before :]:
                if len(self._kept_steps) < self._most_kept:
                    self._kept_steps.setdefault(step.step, step)
        self._keep_until = max(self._keep_until, newest + self._after)
        module = module_of(finding.where)
        # The first finding about a module decides: a later one is as a rule a consequence.
        self._awaited.setdefault(module, finding.first_step)
        for measured in list(self._ranges.values()):
            if measured.module == module:
                self._pin(measured)

    def _pin(self, record: RangeRecord) -> None:
        """Keep a measurement for good: of each topic and module the last before, the first after."""
        those = [k for k in self._pinned if k[1:] == (record.topic, record.module)]
        if len(those) < 2 and len(self._pinned) < MAX_RANGES:
            self._pinned[record.step, record.topic, record.module] = record

    def _chosen_ranges(self) -> list[RangeRecord]:
        chosen = dict(self._pinned)
        newest = sorted(self._ranges.values(), key=self._importance)
        for record in newest[: max(0, MAX_RANGES - len(chosen))]:
            chosen.setdefault((record.step, record.topic, record.module), record)
        return [chosen[key] for key in sorted(chosen)]

    def _importance(self, record: RangeRecord) -> tuple[bool, bool, int]:
        """Sort key of what a box shows first: culprits, all together, what is not finite."""
        return (
            record.module not in self._awaited,
            record.module != ALL_MODULES,
            -record.histogram.nonfinite,
        )


def recorded(identity: RunIdentity, records: Iterable[Record], steps: int) -> Recorder:
    """Return a recorder that has taken in ``records``."""
    recorder = Recorder(identity, steps)
    recorder.apply(*records)
    return recorder
