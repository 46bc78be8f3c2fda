"""Remembers the newest evidence of a run, and that around each finding, in bounded memory."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ampwatch.wire.blackbox.box import Box
from ampwatch.wire.blackbox.culprit import module_of
from ampwatch.wire.blackbox.newest import Newest
from ampwatch.wire.records import (
    ALL_MODULES,
    DevicePhasesRecord,
    EndRecord,
    FactsRecord,
    FindingRecord,
    MemoryRecord,
    OptimizerRecord,
    RangeRecord,
    RunState,
    SamplingRecord,
    SensorFailureRecord,
    Severity,
    StepRecord,
    Topic,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ampwatch.wire.records import Finding, Record, RunIdentity

MAX_FINDINGS = 256
"""Findings in a box; one per kind and place, so a broken large model has many."""

MAX_MEASURED = 4096
"""Modules and topics whose newest measurement is remembered."""

MAX_RANGES = 64
"""Measurements in a box; those of culprits come first."""

MAX_FACTS = 64

MAX_FAILURES = 64
"""Sensors whose failures are remembered; there are fewer sensors."""

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


class Recorder:
    """Takes every record of one rank, and makes a ``Box`` of what matters.

    The same in the training process and where a ring is read: the records are the same.

    Args:
        identity: Whose records they are.
        steps: How many of the newest iterations to keep; half as many before and a quarter
            after each finding are kept for good, up to ``KEPT_SPANS`` times as many in all.

    Attributes:
        end: The last word of the run, if it was said.

    Cost:
        Below a microsecond a record. Some 400 bytes for each step that is kept,
        and a kilobyte for each module and topic that was measured.
    """

    def __init__(self, identity: RunIdentity, steps: int = KEPT_STEPS) -> None:
        self.end: EndRecord | None = None
        self._identity = identity
        self._before, self._after = steps // 2, steps // 4
        self._most_kept = KEPT_SPANS * steps
        self._steps: deque[StepRecord] = deque(maxlen=steps)
        self._optimizers: dict[int, OptimizerRecord] = {}
        self._kept_steps: dict[int, StepRecord] = {}
        self._keep_until = -1
        self._ranges: dict[tuple[Topic, str], RangeRecord] = {}
        self._pinned: dict[tuple[int, Topic, str], RangeRecord] = {}
        self._awaited: dict[str, int] = {}
        self._findings: dict[str, Finding] = {}
        self._alarms: set[str] = set()
        self._explained: set[str] = set()
        self._facts: dict[str, str] = {}
        self._sampling: SamplingRecord | None = None
        self._failures: dict[str, SensorFailureRecord] = {}
        self._memory: MemoryRecord | None = None
        self._timed: deque[DevicePhasesRecord] = deque(maxlen=MAX_TIMED)

    def put(self, *records: Record) -> None:
        """Take in records, in the order in which they were written.

        A record that comes again, as the ring repeats some, changes nothing.
        """
        for record in records:
            handler = _HANDLERS.get(type(record))
            if handler is not None:  # what censuses and windows say is in the findings about them
                handler(self, record)

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
    def newest_step(self) -> int:
        """The newest iteration; -1 before the first."""
        return self._steps[-1].step if self._steps else -1

    @property
    def newest(self) -> Newest:
        """The newest of what is remembered. Cost: 2 us, and a look at each step without a loss."""
        losses = (step.loss for step in reversed(self._steps) if step.num_losses)
        dtypes = self._facts.get("autocast_dtype", "")
        return Newest(
            started_ns=self._identity.started_ns,
            step=self._steps[-1] if self._steps else None,
            loss=next(losses, None),
            optimizers=tuple(self._optimizers.values()),
            gradient=self._ranges.get((Topic.GRADIENT, ALL_MODULES)),
            autocast_dtypes=dtypes.split(",") if dtypes else (),
            findings=tuple(self._findings.values()),
            memory=self._memory,
        )

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
            identity=self._identity,
            state=RunState.RUNNING if end is None else end.state,
            reason="" if end is None else end.reason,
            ended_ns=0 if end is None else end.time_ns,
            written_ns=written_ns,
            written_by=written_by,
            facts=dict(self._facts),
            # They are updated in place while the run goes on.
            findings=[replace(f, evidence=dict(f.evidence)) for f in self._findings.values()],
            steps=[steps[index] for index in sorted(steps)],
            optimizers=[self._optimizers[index] for index in sorted(self._optimizers)],
            ranges=self._chosen_ranges(),
            sampling=self._sampling,
            failures=list(self._failures.values()),
            device_phases=list(self._timed),
        )

    def _put_step(self, record: StepRecord) -> None:
        self._steps.append(record)
        if record.step <= self._keep_until and len(self._kept_steps) < self._most_kept:
            self._kept_steps[record.step] = record

    def _put_optimizer(self, record: OptimizerRecord) -> None:
        self._optimizers[record.index] = record

    def _put_range(self, record: RangeRecord) -> None:
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

    def _put_facts(self, record: FactsRecord) -> None:
        for name, value in record.facts.items():
            if name in self._facts or len(self._facts) < MAX_FACTS:
                self._facts[name] = value

    def _put_sampling(self, record: SamplingRecord) -> None:
        self._sampling = record

    def _put_failure(self, record: SensorFailureRecord) -> None:
        if record.sensor in self._failures or len(self._failures) < MAX_FAILURES:
            self._failures[record.sensor] = record

    def _put_memory(self, record: MemoryRecord) -> None:
        self._memory = record

    def _put_timed(self, record: DevicePhasesRecord) -> None:
        self._timed.append(record)

    def _put_end(self, record: EndRecord) -> None:
        self.end = record

    def _put_finding(self, record: FindingRecord) -> None:
        finding = record.finding
        key = finding.key
        # The first ones stay: root causes are found before what follows from them.
        if key not in self._findings and len(self._findings) >= MAX_FINDINGS:
            return
        self._findings[key] = finding
        if not finding.root:
            self._explained.add(key)
        # Some begin as an information and become a warning when they last.
        if finding.severity is not Severity.INFO and key not in self._alarms:
            self._alarms.add(key)
            self._keep_around(finding)

    def _keep_around(self, finding: Finding) -> None:
        newest = self.newest_step
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


_HANDLERS: dict[type[Any], Callable[[Recorder, Any], None]] = {
    StepRecord: Recorder._put_step,  # noqa: SLF001 - same module
    OptimizerRecord: Recorder._put_optimizer,  # noqa: SLF001
    RangeRecord: Recorder._put_range,  # noqa: SLF001
    FindingRecord: Recorder._put_finding,  # noqa: SLF001
    FactsRecord: Recorder._put_facts,  # noqa: SLF001
    SamplingRecord: Recorder._put_sampling,  # noqa: SLF001
    SensorFailureRecord: Recorder._put_failure,  # noqa: SLF001
    MemoryRecord: Recorder._put_memory,  # noqa: SLF001
    DevicePhasesRecord: Recorder._put_timed,  # noqa: SLF001
    EndRecord: Recorder._put_end,  # noqa: SLF001
}


def recorded(identity: RunIdentity, records: Iterable[Record], steps: int) -> Recorder:
    """Return a recorder that has taken in ``records``."""
    recorder = Recorder(identity, steps)
    for record in records:
        recorder.put(record)
    return recorder
