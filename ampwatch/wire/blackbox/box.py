"""Box: what one rank of a run has left behind, the findings and the evidence around them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ampwatch.wire.records import (
    DevicePhasesRecord,
    Finding,
    LayerRecord,
    OptimizerRecord,
    RangeRecord,
    RunIdentity,
    RunState,
    SamplingRecord,
    SensorFailureRecord,
    Severity,
    StepRecord,
    Topic,
)

DIED = "the process ended without closing: killed, out of memory or crashed"


@dataclass(slots=True)
class Box:
    """Evidence of one rank, as it was when the box was made.

    Attributes:
        identity: Run, rank and process.
        state: What the rank was doing.
        reason: Why it ended, in words: the exception that ended the loop, or that it was
            killed; empty otherwise.
        ended_ns: Unix time at which it announced its end; 0 if it has not. Unit: ns.
        traceback: Where in the user's program that exception came from; empty without one.
        written_ns: When the box was made. Unit: ns.
        written_by: Who made it: ``training``, ``daemon`` or ``report``.
        facts: What does not change from step to step, by name.
        settings: The settings of the run; empty if whoever made the box did not know them.
        findings: The findings, in the order in which they were made.
        steps: Iterations in order: the newest, and those around each finding.
        optimizers: The newest record of each optimizer.
        ranges: Exponents of modules, the oldest first: the newest of each topic, and those
            of culprits when the finding was made.
        sampling: The newest totals of sampling, if there was any.
        notes: What else there is to know, in sentences.
        failures: The newest exception of each sensor that failed, and how many there were.
        device_phases: The newest iterations that the device has timed, in order.
        layers: The modules without children, and what was measured of the operands of their products;
            none if whoever made the box did not know them.
    """

    identity: RunIdentity
    state: RunState = RunState.RUNNING
    reason: str = ""
    ended_ns: int = 0
    traceback: str = ""
    written_ns: int = 0
    written_by: str = "training"
    facts: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str | int | float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    optimizers: list[OptimizerRecord] = field(default_factory=list)
    ranges: list[RangeRecord] = field(default_factory=list)
    sampling: SamplingRecord | None = None
    notes: list[str] = field(default_factory=list)
    failures: list[SensorFailureRecord] = field(default_factory=list)
    device_phases: list[DevicePhasesRecord] = field(default_factory=list)
    layers: list[LayerRecord] = field(default_factory=list)

    @property
    def has_alarm(self) -> bool:
        """Return whether something is wrong: a finding that is no mere information."""
        return any(f.severity is not Severity.INFO for f in self.findings)

    @property
    def has_ended(self) -> bool:
        """Return whether nothing more can come from the process."""
        return self.state in (RunState.FINISHED, RunState.FAILED)

    @property
    def last_ns(self) -> int:
        """The newest time at which the run is known to have lived. Unit: ns."""
        newest = (step.time_ns for step in self.steps[-1:])
        return max(self.identity.started_ns, self.ended_ns, *newest)


def joined(older: Box, newer: Box) -> Box:
    """Return what two boxes of one rank say together; where they differ the newer holds.

    The one may know what the other never saw: the training process its settings and its
    exception, whoever reads the ring later the steps up to the end.
    """
    findings = {f.key: f for f in (*older.findings, *newer.findings)}
    steps = {s.step: s for s in (*older.steps, *newer.steps)}
    optimizers = {o.index: o for o in (*older.optimizers, *newer.optimizers)}
    failures = {f.sensor: f for f in (*older.failures, *newer.failures)}
    timed = {t.step: t for t in (*older.device_phases, *newer.device_phases)}
    ranges = {(r.step, r.topic, r.module): r for r in (*older.ranges, *newer.ranges)}
    return Box(
        identity=newer.identity,
        state=newer.state,
        reason=newer.reason or ("" if newer.state is RunState.FINISHED else older.reason),
        ended_ns=newer.ended_ns or older.ended_ns,
        traceback=newer.traceback or older.traceback,
        written_ns=newer.written_ns,
        written_by=newer.written_by,
        facts=older.facts | newer.facts,
        settings=newer.settings or older.settings,
        findings=list(findings.values()),
        steps=[steps[key] for key in sorted(steps)],
        optimizers=[optimizers[index] for index in sorted(optimizers)],
        ranges=sorted(ranges.values(), key=_place),
        sampling=newer.sampling or older.sampling,
        notes=newer.notes or older.notes,
        failures=list(failures.values()),
        device_phases=[timed[key] for key in sorted(timed)],
        layers=newer.layers or older.layers,
    )


def _place(record: RangeRecord) -> tuple[int, Topic, str]:
    return record.step, record.topic, record.module
