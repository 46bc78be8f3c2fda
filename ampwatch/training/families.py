"""Which sensors watch a training: a table by level, in the order in which they are notified of an event."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ampwatch.training.hooks.regions import Regions
from ampwatch.training.iteration.ledger import IterationLedger
from ampwatch.training.iteration.programs import Programs
from ampwatch.training.iteration.samples import DeferredReads, Planner, RangeSamples
from ampwatch.training.replay.sensor import ReplaySensor
from ampwatch.training.sensors.autocast.compiled_backward import CompiledBackwardSensor
from ampwatch.training.sensors.autocast.stale_casts import StaleCastSensor
from ampwatch.training.sensors.calls.autocast_backward import AutocastBackwardSensor
from ampwatch.training.sensors.calls.clipping import ClippingSensor
from ampwatch.training.sensors.calls.gradient_use import GradientUseSensor
from ampwatch.training.sensors.calls.hand_clips import HandClips
from ampwatch.training.sensors.calls.penalties import PenaltySensor
from ampwatch.training.sensors.facts import AutocastSensor, Failures, Notices, Whereabouts
from ampwatch.training.sensors.memory.growth import MemorySensor
from ampwatch.training.sensors.ops.census import OpCensusSensor
from ampwatch.training.sensors.ops.inputs import InputSensor
from ampwatch.training.sensors.ops.refused import RefusedOps
from ampwatch.training.sensors.ops.waits import WaitSensor
from ampwatch.training.sensors.origins.sensor import OriginSensor
from ampwatch.training.sensors.ranges.activations import ActivationSensor
from ampwatch.training.sensors.ranges.collectives import CollectiveSensor
from ampwatch.training.sensors.ranges.flushed_gradients import FlushedGradientSensor
from ampwatch.training.sensors.ranges.gradients import DirectGradientSensor, ScaledGradientSensor
from ampwatch.training.sensors.ranges.logits import LogitSensor
from ampwatch.training.sensors.ranges.updates import UpdateSensor
from ampwatch.training.sensors.ranges.weights import WeightSensor
from ampwatch.training.sensors.rounding.averages import Averages
from ampwatch.training.sensors.rounding.fp8_casts import Fp8Casts
from ampwatch.training.sensors.rounding.lossy_casts import LossyCasts
from ampwatch.training.sensors.rounding.scattered_sums import ScatteredSums
from ampwatch.training.sensors.rounding.sums import Sums
from ampwatch.training.sensors.rounding.weight_additions import WeightAdditions
from ampwatch.training.sensors.scaler.missed_steps import MissedSteps, RootLosses, UnscaledHalf
from ampwatch.training.sensors.scaler.no_iteration import NoIteration
from ampwatch.training.sensors.scaler.replicas import ReplicaSensor
from ampwatch.training.sensors.scaler.schedulers import SchedulerSensor
from ampwatch.training.sensors.scaler.succession import ScalerSuccession
from ampwatch.training.sensors.state.checksums import ChecksumSensor
from ampwatch.training.sensors.time.phases import PhaseSensor
from ampwatch.training.sensors.window.sensor import WindowSensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ampwatch.training.hooks.sensor import Sensor
    from ampwatch.training.iteration.context import Context


class Row(NamedTuple):
    """A sensor, and where it is wanted.

    Attributes:
        kind: Its class, which is made with the context.
        wanted: The trainings it is for.
    """

    kind: Callable[..., Sensor]
    wanted: Callable[[Context], bool]


def _always(_context: Context) -> bool:
    return True


def _samples(context: Context) -> bool:
    """At ``standard`` and ``deep``, where values can be read."""
    return context.samples


FIRST = (
    Row(Failures, _always),
    Row(Whereabouts, _always),
    Row(MemorySensor, _always),
    Row(AutocastBackwardSensor, _always),
    Row(ClippingSensor, _always),
    Row(ReplaySensor, _samples),
    Row(RangeSamples, _samples),
    # Ranks that skip different openings would sample in different steps.
    Row(Programs, lambda c: c.samples and c.peers.world_size == 1),
    Row(Planner, _samples),
)
"""Sensors that stand before all others. What is measured belongs to the iteration that the ledger closes, so all
that measure are notified before the ledger, which is among the last."""

OF_SCALER = (
    Row(GradientUseSensor, lambda c: c.is_scaled),
    Row(PenaltySensor, lambda c: c.samples and c.is_scaled),
    Row(ScaledGradientSensor, lambda c: c.samples and c.is_scaled),
    Row(DirectGradientSensor, lambda c: c.samples and not c.is_scaled),
    Row(FlushedGradientSensor, lambda c: c.samples and c.is_scaled),
    Row(HandClips, lambda c: c.samples and c.is_scaled),
    Row(UnscaledHalf, lambda c: not c.is_scaled and c.bus.loss_scaler is None),
    Row(ReplicaSensor, lambda c: c.scaler is not None),
    Row(RootLosses, lambda c: c.scaler is None),
    Row(MissedSteps, lambda c: c.scaler is None and c.bus.loss_scaler is None),
)
"""Sensors made for the watched scaler, or for a training without one; others take their place when another
scaler is watched."""

OF_VALUES = (
    Row(ActivationSensor, _samples),
    Row(WeightSensor, _samples),
    Row(UpdateSensor, _samples),
    Row(ChecksumSensor, lambda c: c.samples and c.peers.world_size > 1),
    Row(Regions, _samples),
    Row(CollectiveSensor, _samples),
    Row(InputSensor, _samples),
    Row(OpCensusSensor, _samples),
    Row(OriginSensor, _samples),
    Row(LogitSensor, _samples),
    Row(LossyCasts, _samples),
    Row(Fp8Casts, _samples),
    Row(Sums, _samples),
    Row(Averages, _samples),
    Row(WeightAdditions, _samples),
    Row(ScatteredSums, _samples),
    Row(RefusedOps, _samples),
    Row(WaitSensor, _samples),
    Row(DeferredReads, _samples),
    Row(WindowSensor, _samples),
)
"""Sensors that measure values and observe ops."""

OF_STEPS = (
    Row(AutocastSensor, _always),
    Row(Notices, _always),
    Row(PhaseSensor, _always),
    # A scheduler's step belongs to the step of its optimizer: before the ledger.
    Row(SchedulerSensor, _always),
    Row(IterationLedger, _always),
    Row(StaleCastSensor, _always),
    Row(CompiledBackwardSensor, _always),
    Row(ScalerSuccession, lambda c: c.bus.loss_scaler is None),
    Row(NoIteration, _always),
)
"""Sensors of every level: those that follow steps and their time."""


def make(
    rows: Iterable[Row],
    context: Context,
    made: dict[object, Sensor],
    makers: Mapping[object, Callable[[], Sensor]],
) -> list[Sensor]:
    """Return the sensors of some rows that a training wants, in their order.

    Args:
        rows: Rows of the table.
        context: What the sensors share.
        made: Sensors by class: those that are made already are taken, the others are added.
        makers: How those are made, by class, that need more than the context.
    """
    sensors = []
    for kind, is_wanted in rows:
        if is_wanted(context):
            if kind not in made:
                made[kind] = makers[kind]() if kind in makers else kind(context)
            sensors.append(made[kind])
    return sensors
