"""Iterations in; the last step, records and findings out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ampwatch.diagnosis.autocast.compiled_backward import CompiledBackward
from ampwatch.diagnosis.autocast.stale_casts import StaleCasts
from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.calls.api_misuse import ApiMisuse
from ampwatch.diagnosis.escalation import Escalation
from ampwatch.diagnosis.evidence.attention import Attention
from ampwatch.diagnosis.evidence.births import BadInput, OpTrace
from ampwatch.diagnosis.evidence.logits import LogitsRead
from ampwatch.diagnosis.evidence.memory import MemoryRead
from ampwatch.diagnosis.evidence.ops import Machine
from ampwatch.diagnosis.evidence.plans import OperandsMeasured, PlanMade
from ampwatch.diagnosis.evidence.replicas import CheckedWeights
from ampwatch.diagnosis.evidence.rounding import (
    BrokenScale,
    FlushedGradients,
    Fp8Cast,
    GradientSum,
    LoopSum,
    LossyCast,
    LostSquares,
    LostUpdate,
    StillAverage,
    StuckAverage,
    StuckSum,
    SumSeen,
)
from ampwatch.diagnosis.evidence.scaler import (
    CompiledGradients,
    ReplicaVerdicts,
    ScalerChange,
    StaleCast,
    UnscaledStep,
)
from ampwatch.diagnosis.evidence.state import SoundBuffers
from ampwatch.diagnosis.evidence.time import DevicePhases
from ampwatch.diagnosis.evidence.waits import HostWaits
from ampwatch.diagnosis.forward.culprit_ops import CulpritOps
from ampwatch.diagnosis.forward.forward_range import ForwardRange
from ampwatch.diagnosis.forward.logits import LogitGrowth
from ampwatch.diagnosis.gradients.culprits import Culprits, OtherRanks
from ampwatch.diagnosis.gradients.flushed_later import FlushedLater
from ampwatch.diagnosis.gradients.gradient_range import GradientRange
from ampwatch.diagnosis.gradients.loss_dtype import LossDtype
from ampwatch.diagnosis.gradients.lost_gradients import LostGradients
from ampwatch.diagnosis.memory.creep import MemoryCreep
from ampwatch.diagnosis.performance.performance import Performance
from ampwatch.diagnosis.performance.syncs import SyncsInStep
from ampwatch.diagnosis.plain import PlainForm
from ampwatch.diagnosis.records.memory_records import MemoryRecorder
from ampwatch.diagnosis.records.op_records import OpRecorder
from ampwatch.diagnosis.records.range_records import RangeRecorder
from ampwatch.diagnosis.rounding.accumulation import (
    EMA_ROUNDING,
    METRIC_ACCUM_ROUNDING,
    Accumulation,
)
from ampwatch.diagnosis.rounding.fp8 import Fp8
from ampwatch.diagnosis.rounding.lossy_casts import RoundedIntegers
from ampwatch.diagnosis.rounding.plan_left import PlanLeft
from ampwatch.diagnosis.rounding.update_precision import UpdatePrecision
from ampwatch.diagnosis.scale.scale_dynamics import ScaleDynamics
from ampwatch.diagnosis.scale.scale_reset import ScaleReset
from ampwatch.diagnosis.state.divergence import Divergence
from ampwatch.diagnosis.state.poisoned_state import PoisonedState
from ampwatch.diagnosis.state.replica_drift import ReplicaDrift
from ampwatch.diagnosis.steps.periodic_skips import PeriodicSkips
from ampwatch.diagnosis.steps.replicas import Replicas
from ampwatch.diagnosis.steps.shared_scaler import SharedScaler
from ampwatch.diagnosis.steps.skips import SkipClassifier
from ampwatch.diagnosis.steps.step_bookkeeping import StepBookkeeping
from ampwatch.diagnosis.steps.steps import StepJudge, StepVerdict, Totals
from ampwatch.diagnosis.time.step_times import StepTimes
from ampwatch.wire.records import DevicePhasesRecord, OptimizerRecord, StepRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ampwatch.diagnosis.book import Notify
    from ampwatch.diagnosis.evidence.iteration import Iteration, SamplingCost
    from ampwatch.diagnosis.evidence.ops import LayerShape, OpCensus
    from ampwatch.settings import Settings
    from ampwatch.wire.records import Record


@dataclass(frozen=True, slots=True)
class LastStep:
    """The iteration that has ended last.

    On a CPU, and without a fused optimizer on a GPU, its outcome is known, so
    ``if not watch.last_step.skipped: scheduler.step()`` right after
    ``scaler.update()`` is exact. With fused optimizers on a GPU only the device knows
    the outcome; then ``skipped`` is ``None``.

    Attributes:
        step: Index of the iteration since ``monitor()``, from 0; -1 before the first.
        skipped: Whether the step of any optimizer was skipped; ``None`` if the host does
            not know (yet), or was told nothing that it can read.
        loss_scale: The newest loss scale that has reached the host; NaN without one.
        skipped_optimizers: Numbers of the optimizers whose step was skipped.
    """

    step: int = -1
    skipped: bool | None = False
    loss_scale: float = math.nan
    skipped_optimizers: tuple[int, ...] = ()


@dataclass(slots=True)
class SelfCost:
    """Cost and gaps of ampwatch itself, so far.

    Attributes:
        overhead_ns: Host time on the training thread. Unit: ns.
        sensor_errors: Exceptions kept from training.
        observations_dropped: Iterations whose values were given up.
    """

    overhead_ns: int
    sensor_errors: int
    observations_dropped: int


class Known(NamedTuple):
    """Knowledge of the sensors that the diagnosis reads and never copies.

    Attributes:
        autocast_dtypes: Names of the autocast dtypes seen.
        lost_eps: Parameters whose ``eps`` is zero in their dtype.
        machine: What the training runs on.
        layers: The weights of the model's layers at set-up.
        other_ranks: The other ranks of the run; ``None`` where nothing is known of any.
    """

    autocast_dtypes: Sequence[str]
    lost_eps: Mapping[str, float]
    machine: Machine = Machine()
    layers: Sequence[LayerShape] = ()
    other_ranks: OtherRanks | None = None


class Diagnosis:
    """Takes the iterations of one training, in order.

    An iteration in which something is new is judged by every detector. Those that follow it and are
    plain (``PlainForm``) only those detectors get that count, several iterations in one call.

    Args:
        settings: Thresholds.
        initial_scale: The scale before the first iteration; NaN without a scaler.
        put: Where records go, in their order; several in a call.
        notify: Called with findings, as they are made and as they change.
        cost: Asked what ampwatch has cost so far, once for plain iterations in a row.
        sampling_cost: Asked once per sample what sampling has cost so far.
        known: What the sensors know.
        run_guarded: Calls the detectors; a detector that fails must not end the records.

    Attributes:
        last_step: The newest iteration that was judged.
        totals: Counts so far.
        book: The findings.
        iterations: How many iterations were taken in.
        ops: Adds up which op ran in which dtype.
        focus: Names of the modules whose outputs should be measured in every iteration.
        memory: Records the memory that the training takes.
    """

    def __init__(
        self,
        settings: Settings,
        initial_scale: float,
        *,
        put: Callable[..., None],
        notify: Notify,
        cost: Callable[[], SelfCost],
        sampling_cost: Callable[[], SamplingCost],
        known: Known,
        run_guarded: Callable[..., None],
    ) -> None:
        self.last_step = LastStep(loss_scale=initial_scale)
        self.totals = Totals()
        self.book = FindingBook(notify)
        self.iterations = 0
        self._put = put
        self._cost = cost
        self._autocast_dtypes = known.autocast_dtypes
        self._run_guarded = run_guarded
        self._skips = SkipClassifier(settings.calibration_steps, settings.probe_steps)
        self._judge = StepJudge(self._skips)
        self._culprits = Culprits(known.other_ranks)
        self._scale = ScaleDynamics(self.book, settings, self._skips, self._culprits)
        self._bookkeeping = StepBookkeeping(self.book, settings)
        self._loss = LossDtype(self.book)
        self._lost = lost = LostGradients(known.autocast_dtypes)
        self._gradients = GradientRange(self.book, self._culprits, lost)
        self._forward = ForwardRange(self.book, settings)
        self._state = PoisonedState(self.book, known.lost_eps)
        self._updates = UpdatePrecision(self.book)
        self._ranges = RangeRecorder(settings, put, sampling_cost, self._state.nonfinite)
        self.ops = OpRecorder(settings, put)
        self._settings = settings
        self.move(known.machine, known.layers)
        self.focus = self._forward.focus
        self._culprit_ops = culprit_ops = CulpritOps(self.book)
        self._escalation = Escalation(self._skips, culprit_ops)
        self._api = ApiMisuse(self.book, lambda: self.last_step.loss_scale)
        self._reset = ScaleReset(self.book)
        self._periodic = PeriodicSkips(self.book)
        self._shared = SharedScaler(self.book)
        self._compiled = CompiledBackward(self.book)
        self._divergence = Divergence(self.book)
        self._times = StepTimes(self.book)
        self._accumulation = accumulation = Accumulation(self.book)
        self._plain: PlainForm | None = None
        self._waiting = (
            self._culprit_ops,
            self._scale,
            self._forward,
            self._api,
            self._reset,
            self._compiled,
        )
        self._counting = (
            self._escalation,
            self._scale,
            self._bookkeeping,
            self._gradients,
            self._periodic,
            self._shared,
            self._divergence,
            self._times,
        )
        fp8 = Fp8(self.book, settings)
        creep, memory = MemoryCreep(self.book), MemoryRecorder(put)
        self._syncs = syncs = SyncsInStep(self.book)
        self._logits = LogitGrowth(self.book)
        plan_left = PlanLeft(self.book)
        # What says nothing of the numbers of an iteration: it stays a plain one.
        self._aside: dict[type, tuple[Callable[[Any], None], ...]] = {
            MemoryRead: (memory.record, creep.observe),
            HostWaits: (syncs.observe,),
            LogitsRead: (self._logits.observe,),
            PlanMade: (plan_left.follow,),
            OperandsMeasured: (plan_left.observe,),
            DevicePhases: (self._observe_device,),
        }
        self.memory = memory
        self._observers: dict[type, Callable[[Any], None]] = {
            OpTrace: self._observe_trace,
            BadInput: culprit_ops.observe_input,
            LossyCast: RoundedIntegers(self.book).observe,
            Fp8Cast: fp8.observe,
            BrokenScale: fp8.observe_scale,
            SumSeen: self._suspect,
            StuckSum: accumulation.observe_sum,
            LoopSum: accumulation.observe_loop,
            StuckAverage: self._observe_average,
            StillAverage: self._observe_still,
            GradientSum: accumulation.observe_gradients,
            LostSquares: self._state.observe_squares,
            SoundBuffers: self._state.observe_sound,
            LostUpdate: self._updates.observe,
            FlushedGradients: FlushedLater(self.book).observe,
            ScalerChange: self._reset.observe,
            UnscaledStep: self._gradients.observe,
            CompiledGradients: self._compiled.observe,
            ReplicaVerdicts: Replicas(self.book).observe,
            CheckedWeights: ReplicaDrift(self.book).observe,
            StaleCast: StaleCasts(self.book).observe,
            **self._api.observers,
        }

    def deliver(self, *iterations: Iteration) -> None:
        """Take in iterations: judge them, record them, detect failures.

        Cost: some 8 us a plain iteration, 40 us any other one.
        """
        plain: list[Iteration] = []
        for iteration in iterations:
            if self._plain is not None and self._plain.takes(iteration):
                plain.append(iteration)
                continue
            self._count(plain)
            plain.clear()
            # Until all detectors have had their say nothing is known of what comes next.
            self._plain = None
            verdict = self._judge.judge(iteration)
            self._take_in([iteration], verdict)
            self._run_guarded(self._detect, iteration, verdict)
        self._count(plain)

    def deliver_alike(self, iterations: Sequence[Iteration]) -> None:
        """Take in iterations that differ in their times, in their losses, which are finite, and in the tracker.

        Cost: some 6 us each, if they are plain.
        """
        if self._plain is not None and self._plain.takes_all(iterations):
            self._count(iterations)
        else:
            self.deliver(*iterations)

    def _count(self, plain: Sequence[Iteration]) -> None:
        """Take in plain iterations in a row."""
        if plain:
            self._take_in(plain, self._judge.judge_plain(plain))
            self._run_guarded(self._detect_nothing, plain)

    def _take_in(self, alike: Sequence[Iteration], verdict: StepVerdict) -> None:
        """Record iterations of one verdict, and remember the last of them."""
        last = alike[-1]
        self.iterations += len(alike)
        skipped = tuple(sorted([i for i, found in last.found_inf.items() if found]))
        outcome = bool(skipped) if last.is_told or last.found_inf else None
        self.last_step = LastStep(last.step, outcome, last.loss_scale, skipped)
        self._record(alike, verdict)

    @property
    def norms(self) -> Mapping[str, float]:
        """L2 norms of the newest measured gradients by parameter, without the loss scale."""
        return self._ranges.norms

    def observe(self, observation: object) -> None:
        """Take in what a sensor has learnt in the open iteration, as soon as it has.

        Args:
            observation: An object of a type that a family of findings takes; others are ignored.
        """
        handler = self._observers.get(type(observation))
        for aside in self._aside.get(type(observation), ()):
            self._run_guarded(aside, observation)
        if handler is not None:
            self._plain = None
            self._run_guarded(handler, observation)

    def _observe_trace(self, trace: OpTrace) -> None:
        self._culprit_ops.observe_trace(trace)
        self._culprits.observe_trace(trace)
        self._state.observe_trace(trace)

    def _suspect(self, seen: SumSeen) -> None:
        if not self.book.of_kind(METRIC_ACCUM_ROUNDING.slug):
            self._escalation.suspect(seen.step)

    def _observe_average(self, stuck: StuckAverage) -> None:
        if not self.book.of_kind(EMA_ROUNDING.slug):
            self._escalation.suspect(stuck.site.step)
        self._accumulation.observe_average(stuck)

    def _observe_still(self, still: StillAverage) -> None:
        if not self.book.of_kind(EMA_ROUNDING.slug):
            self._escalation.suspect(still.site.step)
        self._accumulation.observe_still(still)

    def _observe_device(self, timed: DevicePhases) -> None:
        self._put(DevicePhasesRecord(timed.step, self.book.now_ns, timed.phases))
        self._times.observe(timed)

    def attention(self) -> Attention:
        """Return what should be observed more closely in the next iteration."""
        escalation = self._escalation
        return Attention(
            escalation.wants_trace,
            escalation.wants_inputs,
            escalation.wants_ops,
            self.focus,
            *escalation.failed,
            escalation.is_known,
            look_every=self._logits.look_every,
        )

    def end(self) -> None:
        """Say what was held back: nothing more will come."""
        self._run_guarded(self._api.flush)

    def move(self, machine: Machine, layers: Sequence[LayerShape]) -> None:
        """Judge by another machine from now on: the training has moved there."""
        self._plain = None
        self._performance = Performance(
            self.book, self._settings, machine, layers, self._autocast_dtypes
        )

    def check_layers(self) -> None:
        """Check the model before anything has run."""
        self._run_guarded(self._performance.check_layers)

    def observe_census(self, census: OpCensus, time_ns: int) -> None:
        """Take in the ops of an iteration that did not end."""
        self._plain = None
        self._run_guarded(self._performance.check_census, census)
        self._run_guarded(self.ops.record, census, time_ns)

    def _detect(self, iteration: Iteration, verdict: StepVerdict) -> None:
        self.book.now_ns = iteration.time_ns
        self._culprit_ops.judge_input(iteration, verdict)
        self._escalation.update(iteration, verdict)
        self._culprits.update(iteration, verdict, iteration.step - self._skips.streak + 1)
        self._state.detect(iteration)
        self._scale.detect(iteration, verdict, self._autocast_dtypes)
        self._bookkeeping.detect(iteration, verdict)
        self._loss.detect(iteration, verdict)
        judged = self._lost.judge(iteration)
        self._gradients.detect(iteration, verdict, judged)
        self._forward.detect(iteration)
        self._updates.detect(iteration)
        self._api.detect(iteration)
        self._ranges.record(iteration, judged)
        self._performance.detect(iteration)
        self._syncs.detect(iteration)
        # Last: they judge by what the others have found.
        self._reset.detect(iteration, verdict)
        self._periodic.detect(iteration, verdict)
        self._shared.detect(iteration, verdict)
        self._compiled.detect(iteration, verdict)
        self._divergence.detect(iteration, verdict)
        self._times.detect(iteration)
        self.book.attach_symptoms()
        self.book.report_escalations()
        if iteration.census is not None:
            self.ops.record(iteration.census, iteration.time_ns)
        self.ops.pass_on(iteration.time_ns)
        if not verdict.set_by_hand and all(detector.is_at_rest for detector in self._waiting):
            plain = PlainForm(iteration, self._autocast_dtypes, self.ops.due_ns)
            self._plain = plain if plain.takes(iteration) else None

    def _detect_nothing(self, plain: Sequence[Iteration]) -> None:
        """Have counted what ``_detect`` would only count."""
        self.book.now_ns = plain[-1].time_ns
        for detector in self._counting:
            detector.count(plain)

    def _record(self, alike: Sequence[Iteration], verdict: StepVerdict) -> None:
        """Record iterations of one verdict."""
        totals = self.totals
        cost = self._cost()
        records: list[Record] = []
        totals.add(alike[-1], verdict, len(alike))
        for iteration in alike:
            records.append(
                StepRecord(
                    step=iteration.step,
                    time_ns=iteration.time_ns,
                    duration_s=iteration.duration_s,
                    loss=iteration.loss,
                    num_losses=iteration.num_losses,
                    loss_scale=iteration.loss_scale,
                    growth_tracker=iteration.growth_tracker,
                    skip_class=verdict.skip_class,
                    consecutive_skips=self._skips.streak,
                    grew=verdict.grew,
                    backed_off=verdict.backed_off,
                    set_by_hand=verdict.set_by_hand,
                    total_growths=totals.growths,
                    total_backoffs=totals.backoffs,
                    total_set_by_hand=totals.set_by_hand,
                    total_nonfinite_losses=totals.nonfinite_losses,
                    total_observations_dropped=cost.observations_dropped,
                    total_sensor_errors=cost.sensor_errors,
                    overhead_ns=cost.overhead_ns,
                    phases=iteration.time.phases,
                    total_samples=iteration.time.samples,
                    total_tokens=iteration.time.tokens,
                    cpu_ns=iteration.time.cpu_ns,
                    run_delay_ns=iteration.time.run_delay_ns,
                )
            )
        # Totals: of iterations alike those after the last one say all.
        for index in {*iteration.found_inf, *iteration.applied_directly}:
            calibrating, probe, unprovoked, storm = totals.skipped[index]
            records.append(
                OptimizerRecord(
                    step=iteration.step,
                    index=index,
                    skipped=iteration.found_inf.get(index, False),
                    total_steps=totals.steps[index],
                    total_skipped=(calibrating, probe, unprovoked, storm),
                )
            )
        self._put(*records)
