"""The newest of all that one rank has written."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ampwatch.numerics.formats import narrowest_half
from ampwatch.state.findings import Findings
from ampwatch.state.text import encodable
from ampwatch.wire.records import (
    ALL_MODULES,
    MAX_OPTIMIZERS,
    OTHER_OPTIMIZERS,
    SKIP_CLASSES,
    BudgetRecord,
    CensusRecord,
    ChecksumRecord,
    DevicePhasesRecord,
    EndRecord,
    FactsRecord,
    FindingRecord,
    MemoryRecord,
    OptimizerRecord,
    PlanRecord,
    RangeRecord,
    SamplingRecord,
    SensorFailureRecord,
    SkipClass,
    StepRecord,
    Topic,
    WindowRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ampwatch.numerics.formats import FloatFormat
    from ampwatch.wire.records import Finding, Record, RunIdentity

MAX_FACTS = 64
"""Facts kept per rank."""

MAX_SENSORS = 64
"""Sensors per rank whose errors are kept apart: twice as many as there are."""

_PUT: dict[type[Any], str] = {
    StepRecord: "_put_step",
    OptimizerRecord: "_put_optimizer",
    RangeRecord: "_put_range",
    SamplingRecord: "_put_sampling",
    FindingRecord: "_put_finding",
    FactsRecord: "_put_facts",
    SensorFailureRecord: "_put_failure",
    MemoryRecord: "_put_memory",
    DevicePhasesRecord: "_put_device_phases",
    CensusRecord: "_put_census",
    WindowRecord: "_put_window",
    ChecksumRecord: "_put_checksum",
    PlanRecord: "_put_plan",
    BudgetRecord: "_put_budget",
    EndRecord: "_put_end",
}
"""The method that takes in a record of a type. A state that has none of that name keeps nothing of it."""


class RankState:
    """One rank of one run, as its records show it.

    The totals are the writer's own, so a state that began late has them right.

    Attributes:
        identity: Who writes the records.
        newest: The newest step, ``None`` before the first.
        loss: The newest loss that was handed to the scaler, ``None`` before the first.
        last_applied_ns: Unix time of the newest step that was not skipped, 0 before. Unit: ns.
        last_record_ns: Unix time of the newest record that has one, or of the start. Unit: ns.
        optimizers: The newest record per optimizer; ``OTHER_OPTIMIZERS`` for all beyond the limit.
        gradient: The newest ranges of all gradients together, ``None`` before the first.
        totals: The totals of sampling so far, ``None`` before the first sample.
        memory: The newest memory that the training takes, ``None`` before the first.
        facts: Values that do not change from step to step, by name; a new dictionary when one does.
        autocast: The format of autocast, float16 or bfloat16, of several the one with the smallest
            range; ``None`` when neither was seen.
        failures: The newest record of each sensor that has failed, by its name.
        end: The last word of the run, ``None`` before it.
        finding_totals: The findings with their totals.

    Args:
        identity: Who writes the records.

    Cost:
        Below a microsecond a record.
    """

    def __init__(self, identity: RunIdentity) -> None:
        self.identity = identity
        self.newest: StepRecord | None = None
        self.loss: float | None = None
        self.last_applied_ns = 0
        self.last_record_ns = identity.started_ns
        self.optimizers: dict[int, OptimizerRecord] = {}
        self.gradient: RangeRecord | None = None
        self.totals: SamplingRecord | None = None
        self.memory: MemoryRecord | None = None
        self.facts: dict[str, str] = {}
        self.autocast: FloatFormat | None = None
        self.failures: dict[str, SensorFailureRecord] = {}
        self.end: EndRecord | None = None
        self.finding_totals = Findings()
        # By name, so that a method of a subclass is found.
        kind = type(self)
        self._puts: dict[type[Any], Callable[[Any, Any], None]] = {
            of: getattr(kind, name) for of, name in _PUT.items() if hasattr(kind, name)
        }

    def apply(self, *records: Record) -> None:
        """Fold records in, in the order in which they were written.

        A record that comes again, as the ring repeats some, changes nothing.
        """
        puts = self._puts
        for record in records:
            put = puts.get(type(record))
            if put is not None:
                put(self, record)

    @property
    def findings(self) -> dict[str, Finding]:
        """The newest state of each finding by its key, in the order in which they were made."""
        return self.finding_totals.by_key

    @property
    def skips(self) -> dict[SkipClass, int]:
        """Optimizer steps skipped since the run began, per class."""
        return by_class(self.optimizers.values())

    @property
    def attempted(self) -> int:
        """Optimizer steps attempted since the run began, skipped ones included."""
        return sum(record.total_steps for record in self.optimizers.values())

    @property
    def loss_scale(self) -> float | None:
        """The newest loss scale; ``None`` without an enabled scaler."""
        if self.newest is None or math.isnan(self.newest.loss_scale):
            return None
        return self.newest.loss_scale

    def time_of(self, step: int) -> int | None:  # noqa: ARG002 - a state with a history knows it
        """Return the Unix time by which ``step`` was over; ``None`` where it is not known. Unit: ns."""
        return None

    def _put_step(self, record: StepRecord) -> None:
        self.newest = record
        self.last_record_ns = record.time_ns
        if record.skip_class is SkipClass.NONE:
            self.last_applied_ns = record.time_ns
        if record.num_losses > 0:
            self.loss = record.loss

    def _put_optimizer(self, record: OptimizerRecord) -> None:
        index = record.index if 0 <= record.index < MAX_OPTIMIZERS else OTHER_OPTIMIZERS
        self.optimizers[index] = record

    def _put_range(self, record: RangeRecord) -> None:
        if record.topic is Topic.GRADIENT and record.module == ALL_MODULES:
            self.gradient = record

    def _put_sampling(self, record: SamplingRecord) -> None:
        self.totals = record

    def _put_finding(self, record: FindingRecord) -> None:
        """Take in a finding as of the iteration it was last seen in, which may be long ago."""
        # The ring repeats findings for readers that come late: the time of reading says nothing.
        seen_ns = self.time_of(record.finding.last_step)
        self.finding_totals.put(record.finding, self.last_record_ns if seen_ns is None else seen_ns)

    def _put_facts(self, record: FactsRecord) -> None:
        # Bounded: the ring is another process's, which could make up facts for ever.
        known = dict(self.facts)
        for name, value in record.facts.items():
            if name in known or len(known) < MAX_FACTS:
                known[name] = encodable(value)
        self.facts = known
        self.autocast = narrowest_half(known.get("autocast_dtype", "").split(","))

    def _put_failure(self, record: SensorFailureRecord) -> None:
        sensor = encodable(record.sensor)
        if sensor in self.failures or len(self.failures) < MAX_SENSORS:
            self.failures[sensor] = record

    def _put_memory(self, record: MemoryRecord) -> None:
        self.memory = record

    def _put_end(self, record: EndRecord) -> None:
        self.end = record
        self.last_record_ns = record.time_ns


def by_class(optimizers: Iterable[OptimizerRecord]) -> dict[SkipClass, int]:
    """Return how many steps of ``optimizers`` were skipped, per class."""
    totals = [record.total_skipped for record in optimizers]
    return {skip: sum(of[i] for of in totals) for i, skip in enumerate(SKIP_CLASSES)}
