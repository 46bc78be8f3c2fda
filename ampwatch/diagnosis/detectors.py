"""The detectors of a training, in the order in which they judge an iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.autocast.autocast_state import CompiledBackward, StaleCasts
from ampwatch.diagnosis.calls.api_misuse import ApiMisuse
from ampwatch.diagnosis.escalation import Escalation
from ampwatch.diagnosis.forward.culprit_ops import CulpritOps
from ampwatch.diagnosis.forward.forward_range import ForwardRange
from ampwatch.diagnosis.forward.logits import LogitGrowth
from ampwatch.diagnosis.gradients.culprits import Culprits
from ampwatch.diagnosis.gradients.gradient_range import GradientRange
from ampwatch.diagnosis.gradients.lost_gradients import FlushedLater, LossDtype, LostGradients
from ampwatch.diagnosis.memory.creep import MemoryCreep
from ampwatch.diagnosis.performance.performance import Performance
from ampwatch.diagnosis.performance.syncs import SyncsInStep
from ampwatch.diagnosis.records.memory_records import MemoryRecorder
from ampwatch.diagnosis.records.op_records import OpRecorder
from ampwatch.diagnosis.records.range_records import RangeRecorder
from ampwatch.diagnosis.rounding.accumulation import Accumulation
from ampwatch.diagnosis.rounding.fp8 import Fp8
from ampwatch.diagnosis.rounding.lossy_casts import RoundedIntegers
from ampwatch.diagnosis.rounding.update_precision import UpdatePrecision
from ampwatch.diagnosis.scale.scale_dynamics import ScaleDynamics
from ampwatch.diagnosis.scale.scale_reset import ScaleReset
from ampwatch.diagnosis.state.divergence import Divergence
from ampwatch.diagnosis.state.poisoned_state import PoisonedState
from ampwatch.diagnosis.state.replica_drift import ReplicaDrift
from ampwatch.diagnosis.steps.periodic_skips import PeriodicSkips
from ampwatch.diagnosis.steps.shared_scaler import Replicas, SharedScaler
from ampwatch.diagnosis.steps.step_bookkeeping import StepBookkeeping
from ampwatch.diagnosis.time.step_times import StepTimes

if TYPE_CHECKING:
    from ampwatch.diagnosis.detector import Detector

DETECTORS: tuple[type[Detector], ...] = (
    # Which op, whose gradient: the others say it.
    CulpritOps,
    Escalation,
    Culprits,
    PoisonedState,
    ScaleDynamics,
    StepBookkeeping,
    LossDtype,
    LostGradients,
    GradientRange,
    FlushedLater,
    ForwardRange,
    LogitGrowth,
    UpdatePrecision,
    Accumulation,
    RoundedIntegers,
    Fp8,
    ApiMisuse,
    StaleCasts,
    Replicas,
    ReplicaDrift,
    RangeRecorder,
    Performance,
    SyncsInStep,
    MemoryRecorder,
    MemoryCreep,
    # They judge by what those before them have found.
    ScaleReset,
    PeriodicSkips,
    SharedScaler,
    CompiledBackward,
    Divergence,
    StepTimes,
    OpRecorder,
)
"""A detector is a class and its line here."""
