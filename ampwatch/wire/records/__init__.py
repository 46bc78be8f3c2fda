"""The record types: the only thing the training process and the daemon share.

A sensor's observation becomes a record, the ring carries records, the daemon
folds them into state. Plain values only. No torch here, and no Prometheus.

Totals in a record are *cumulative since the run began*, so that a reader that
came late, or was lapped by the writer, still knows the truth.
"""
# mypy: implicit-reexport
# ruff: noqa: F401 - what is imported here is offered here

from __future__ import annotations

from ampwatch.wire.records.fields import KERNEL_UNITS
from ampwatch.wire.records.findings import GONE_STEP, OUTSIDE, Finding, FindingRecord, Severity
from ampwatch.wire.records.kernels import KernelRow, KernelTotal, WindowRecord, WindowSkip
from ampwatch.wire.records.laboratory import (
    CONVOLUTION,
    FORWARD,
    GRAD_INPUT,
    GRAD_WEIGHT,
    LINEAR,
    MAX_BUDGETED,
    MAX_PLANNED,
    PHASE_BEGINS,
    PRODUCTS,
    BudgetRecord,
    LayerRecord,
    Operand,
    OperandRecord,
    PlanRecord,
    formats_in_words,
    formats_of_words,
)
from ampwatch.wire.records.ops import (
    CastTotal,
    CensusRecord,
    CensusSource,
    FallbackTotal,
    OpRow,
    OpTotal,
)
from ampwatch.wire.records.places import in_words
from ampwatch.wire.records.ranges import ALL_MODULES, RangeRecord, SamplingRecord, Topic
from ampwatch.wire.records.remedies import Measure, Remedy, Tried
from ampwatch.wire.records.run import (
    MEMORY_LIMIT,
    MEMORY_PARTS,
    MEMORY_PLACES,
    WITHOUT_C,
    ChecksumRecord,
    CulpritRecord,
    EndRecord,
    FactsRecord,
    MemoryRecord,
    PlaceMemory,
    RunIdentity,
    RunState,
    SensorFailureRecord,
    memory_fact,
)
from ampwatch.wire.records.steps import (
    MAX_OPTIMIZERS,
    NO_PHASES,
    OTHER_OPTIMIZERS,
    SKIP_CLASSES,
    DevicePhasesRecord,
    OptimizerRecord,
    Phases,
    SkipClass,
    StepPhase,
    StepRecord,
)

Record = (
    StepRecord
    | OptimizerRecord
    | RangeRecord
    | SamplingRecord
    | CensusRecord
    | WindowRecord
    | ChecksumRecord
    | CulpritRecord
    | DevicePhasesRecord
    | MemoryRecord
    | PlanRecord
    | BudgetRecord
    | FactsRecord
    | FindingRecord
    | SensorFailureRecord
    | EndRecord
)
