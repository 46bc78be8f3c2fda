"""One watched training: the one place that builds the parts and connects them."""

from __future__ import annotations

import math
import time
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Protocol

from ampwatch.diagnosis.calls.known_errors import refuses_nonfinite
from ampwatch.diagnosis.evidence.iteration import SamplingCost
from ampwatch.diagnosis.evidence.known import Known
from ampwatch.diagnosis.pipeline import Diagnosis, LastStep, SelfCost
from ampwatch.guard import Account, Log
from ampwatch.report.error_budget import ErrorBudget
from ampwatch.training.devices import HOST, is_readable, limitation
from ampwatch.training.hooks.bus import Bus
from ampwatch.training.hooks.events import (
    BackwardBegan,
    DevicesKnown,
    EndCalled,
    EndReturned,
    FactsChanged,
)
from ampwatch.training.hooks.open_iteration import OpenIteration
from ampwatch.training.hooks.places import PLACES
from ampwatch.training.hooks.regions import Regions
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.iteration.context import Context
from ampwatch.training.iteration.governor import Governor
from ampwatch.training.iteration.ledger import ROW_WIDTH, Clock, IterationLedger
from ampwatch.training.iteration.programs import Programs
from ampwatch.training.iteration.samples import DeferredReads, Planner, RangeSamples
from ampwatch.training.kernels.choice import KernelSelector
from ampwatch.training.memory import MemoryBudget, limit_of
from ampwatch.training.model.facts import layer_shapes, ranks, run_facts
from ampwatch.training.model.home import Home
from ampwatch.training.model.living import alive
from ampwatch.training.model.machine import machine_of, no_peak
from ampwatch.training.model.names import Names
from ampwatch.training.model.optimizers import OptimizerRegistry
from ampwatch.training.model.trained import Trained
from ampwatch.training.native import core
from ampwatch.training.ops.events import OP_EVENTS
from ampwatch.training.ops.mode import USERS_MODES
from ampwatch.training.other_ranks import Shards
from ampwatch.training.private import SEES_COMPILED
from ampwatch.training.scalers.loss_scaler import NOT_KNOWN, AnswerError, as_outcome, as_scale
from ampwatch.training.sensors.autocast.aged_casts import AgedCasts
from ampwatch.training.sensors.autocast.compiled_backward import CompiledBackwardSensor
from ampwatch.training.sensors.autocast.dtypes import AutocastSensor
from ampwatch.training.sensors.autocast.stale_casts import StaleCastSensor
from ampwatch.training.sensors.births.following import BirthSensor
from ampwatch.training.sensors.births.replaying import ReplaySensor
from ampwatch.training.sensors.calls.autocast_backward import AutocastBackwardSensor
from ampwatch.training.sensors.calls.clipping import ClippingSensor
from ampwatch.training.sensors.calls.exceptions import describe
from ampwatch.training.sensors.calls.gradient_use import GradientUseSensor
from ampwatch.training.sensors.calls.hand_clips import HandClips
from ampwatch.training.sensors.memory.growth import MemorySensor
from ampwatch.training.sensors.ops.census import OpCensusSensor
from ampwatch.training.sensors.ops.inputs import InputSensor
from ampwatch.training.sensors.ops.refused import RefusedOps
from ampwatch.training.sensors.ops.waits import WaitSensor
from ampwatch.training.sensors.ranges.activations import ActivationSensor
from ampwatch.training.sensors.ranges.collectives import CollectiveSensor
from ampwatch.training.sensors.ranges.flushed_gradients import FlushedGradientSensor
from ampwatch.training.sensors.ranges.gradients import (
    DirectGradientSensor,
    ScaledGradientSensor,
)
from ampwatch.training.sensors.ranges.layers import LayerSensor
from ampwatch.training.sensors.ranges.logits import LogitSensor
from ampwatch.training.sensors.ranges.updates import UpdateSensor
from ampwatch.training.sensors.ranges.weights import WeightSensor
from ampwatch.training.sensors.rounding.averages import Averages
from ampwatch.training.sensors.rounding.fp8_casts import Fp8Casts
from ampwatch.training.sensors.rounding.lossy_casts import LossyCasts
from ampwatch.training.sensors.rounding.scattered_sums import ScatteredSums
from ampwatch.training.sensors.rounding.sums import Sums
from ampwatch.training.sensors.rounding.weight_additions import WeightAdditions
from ampwatch.training.sensors.scaler.losses import RootLosses
from ampwatch.training.sensors.scaler.missed_steps import MissedSteps
from ampwatch.training.sensors.scaler.no_iteration import NoIteration
from ampwatch.training.sensors.scaler.replicas import ReplicaSensor
from ampwatch.training.sensors.scaler.schedulers import SchedulerSensor
from ampwatch.training.sensors.scaler.succession import ScalerSuccession
from ampwatch.training.sensors.scaler.unscaled_half import UnscaledHalf
from ampwatch.training.sensors.state.checksums import ChecksumSensor
from ampwatch.training.sensors.tape.taping import TapeSensor
from ampwatch.training.sensors.time.phases import PhaseSensor
from ampwatch.training.sensors.window.sensor import WindowSensor
from ampwatch.training.transfer.deferred import Deferred
from ampwatch.training.transfer.losses import LossSum
from ampwatch.training.transfer.measuring import Measuring
from ampwatch.training.transfer.readback import Readback
from ampwatch.wire.records import WITHOUT_C, FactsRecord, SensorFailureRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from ampwatch.diagnosis.evidence.plans import PlanMade
    from ampwatch.settings import Settings
    from ampwatch.training.hooks.events import (
        IterationClosed,
        IterationPlanned,
        SensorFailed,
        TensorsSwapping,
    )
    from ampwatch.training.outlet import Outlet
    from ampwatch.training.sensors.births.budgets import Asked
    from ampwatch.training.targets import Targets
    from ampwatch.wire.records import CensusRecord, LayerRecord, PlanRecord, WindowRecord

logger = Log()

SAMPLED_LEVELS = ("standard", "deep")
"""Levels at which values are measured and ops are observed, now and then or always."""

NOT_REPLAYED = (
    "batches are kept, and run again, at level standard or deep, where values can be read from the"
    " device; call ampwatch.monitor(model, level='standard')"
)

READBACK_SLOTS = 64
"""Iterations whose values may be on their way from the device; more are dropped and counted."""

MAX_MESSAGE = 400
"""Characters of an exception that are recorded; its traceback is in the log."""

DRAIN_SECONDS = 1.0
"""How long the end waits for values that are still on the device: a device that hangs
must not hang the end of the program as well."""

MAX_DEVICE_ROWS = 16384
"""Rows of a slab at most: 26 MB on the device and as much in pinned memory."""

MIN_DEVICE_ROWS = 2048
"""Rows of a slab at least: an optimizer may hold more than the models do."""


class Attachment(Protocol):
    """Something besides the sensors that goes on and comes off with them: a planted fault."""

    def install(self) -> None:
        """Place it."""

    def remove(self) -> None:
        """Take it off. Idempotent."""


class Notices(Sensor):
    """Records what does not change from step to step, when it changes.

    Args:
        context: What is shared.
    """

    name = "notices"
    is_thread_safe = True

    def __init__(self, context: Context) -> None:
        self._context = context
        self._held: dict[str, str] = {}

    def tensors_swapping(self, _event: TensorsSwapping) -> None:
        """Refer to no parameter meanwhile."""
        self._context.names.let_go()
        self._context.trained.let_go()

    def facts_changed(self, _event: FactsChanged) -> None:
        """Record the facts anew."""
        self.record_facts()

    def iteration_planned(self, _event: IterationPlanned) -> None:
        """Record what memory is held, where that has changed."""
        self.record_memory()

    def record_memory(self) -> None:
        """Record what memory is held, where that has changed. Never in a plain step."""
        held = self._context.memory.facts()
        changed = {name: value for name, value in held.items() if self._held.get(name) != value}
        if changed:
            self._held = held
            self._context.out.put(FactsRecord(changed))

    def record_facts(self) -> None:
        """Record the facts as they are now."""
        context = self._context
        bus = context.bus
        foreign = {"scaler": "inferred"} if bus.infers_scale else None
        if bus.loss_scaler is not None:
            foreign = bus.loss_scaler.facts
        facts = run_facts(context.scaler, context.autocast_dtypes, context.home.device, foreign)
        if context.settings.peak_flops:
            facts["peak_flops"] = context.settings.peak_flops
        if core is None:
            facts[WITHOUT_C] = "yes"
        context.out.put(FactsRecord(facts))


class Failures(Sensor):
    """Records sensors that fail, at once: the records of steps may be what has ended.

    Args:
        context: What is shared.
    """

    name = "failures"
    is_thread_safe = True

    def __init__(self, context: Context) -> None:
        self._context = context

    def sensor_failed(self, event: SensorFailed) -> None:
        """Record which sensor has failed, in which iteration and of what."""
        sensor, errors, error = event
        message = f"{type(error).__name__}: {error}"[:MAX_MESSAGE]
        step = self._context.iteration.step
        self._context.out.put(SensorFailureRecord(sensor, errors, step, message))


class Whereabouts(Sensor):
    """Notices at the end of the first iteration that a training is not where it was at set-up.

    Args:
        context: What is shared.
        diagnosis: Judges by the machine that the training runs on.
        samples: Whether values are measured and ops are observed.
    """

    name = "device"

    def __init__(self, context: Context, diagnosis: Diagnosis, *, samples: bool) -> None:
        self._context = context
        self._diagnosis = diagnosis
        self._samples = samples

    def installed(self) -> None:
        """Have sensors do at set-up what is slow."""
        types = {device.type for device in self._context.home.devices}
        if types and all(map(is_readable, types)):
            self._context.bus.emit(DevicesKnown(has_accelerator=types != {HOST}))

    def iteration_closed(self, _event: IterationClosed) -> None:
        """Look once: by now all parameters are where they are going to be."""
        self.is_dormant = True
        self._count_ranks()
        context = self._context
        home, before = context.home, context.home.device
        if not home.update():
            return
        self.installed()
        if home.device == before:
            return  # some parameters have been left elsewhere, or an optimizer has more of them
        if before is not None:
            logger.warning(
                "the model has moved from %s to %s since ampwatch.monitor(): what is done at set-up"
                " otherwise took place in its first iteration; call monitor() after model.to()",
                before,
                home.device,
            )
        layers = layer_shapes(context.names) if self._samples else ()
        self._diagnosis.move(machine_of(home.device, context.settings), layers)
        self._diagnosis.check_layers()
        context.bus.emit(FactsChanged())

    def _count_ranks(self) -> None:
        rank, _, world_size = ranks()
        known = self._context.peers.world_size
        if world_size != known:
            logger.warning(
                "this is rank %d of %d since torch.distributed.init_process_group(); ampwatch.monitor()"
                " was called before it and knows of %d: what ranks do to one another is not seen, and each"
                " may be taken for the same one; call monitor() after init_process_group(), or set RANK,"
                " LOCAL_RANK and WORLD_SIZE as torchrun does",
                rank,
                world_size,
                known,
            )


class Session:
    """The parts that watch one training. Building them attaches nothing.

    Args:
        targets: What is watched.
        settings: Thresholds and sizes.
        outlet: Where records and findings go.
        first_step: Index of the iteration that is open; not 0 where others went before.

    Attributes:
        diagnosis: What became of the steps.
        bus: Tells the sensors of events.
    """

    def __init__(
        self, targets: Targets, settings: Settings, outlet: Outlet, *, first_step: int = 0
    ) -> None:
        self._first_step = first_step
        self._account = account = Account(USERS_MODES)
        self._iteration = OpenIteration(first_step)
        names = Names(targets.models)
        self.bus = bus = Bus(
            account,
            targets.scaler,
            self._iteration,
            PLACES,
            OP_EVENTS,
            models=names.models,
            loss_scaler=targets.loss_scaler,
        )
        self._readback = Readback(READBACK_SLOTS, ROW_WIDTH)
        self._diagnosing, self._ending = bus.guard("diagnosis"), bus.guard("exceptions")
        dtypes, lost_eps = list[str](), dict[str, float]()
        tensors = (tensor for _, tensor in (*names.parameters(), *names.buffers()))
        memory = MemoryBudget(limit_of(tensors, settings.memory_bytes))
        measuring = Measuring(
            KernelSelector().of,
            _device_rows(names),
            memory=memory,
            with_blocks=settings.block_formats == "on",
        )
        trained = Trained(names, targets.optimizers)
        bus.ownership.optimizers = lambda: alive(trained.met.values())
        self._home = home = Home(names, trained)
        # Where values cannot be read without waiting, steps are counted and nothing is measured.
        readable = all(is_readable(device.type) for device in home.devices)
        self._samples = settings.level in SAMPLED_LEVELS and readable
        machine = machine_of(home.device, settings)
        layers = layer_shapes(names) if self._samples else ()
        self.diagnosis = Diagnosis(
            settings,
            _scale_of(targets.scaler),
            put=outlet.put,
            notify=outlet.notify,
            cost=self.cost,
            sampling_cost=self.sampling_cost,
            known=Known(
                dtypes,
                lost_eps,
                machine,
                layers,
                Shards(outlet.others, names, outlet.put),
            ),
            run_guarded=self._diagnosing.run,
        )
        scaled = targets.scaler is not None and targets.scaler.is_enabled()
        self._context = context = Context(
            settings=settings,
            home=home,
            names=names,
            trained=trained,
            registry=OptimizerRegistry(targets.optimizers, targets.models, scaled=scaled),
            autocast_dtypes=dtypes,
            lost_eps=lost_eps,
            iteration=self._iteration,
            losses=LossSum(),
            bus=bus,
            governor=Governor(settings, account),
            memory=memory,
            measuring=measuring,
            deferred=Deferred(),
            regions=Regions(),
            clock=Clock(),
            observe=self.diagnosis.observe,
            out=outlet,
            peers=outlet.others,
        )
        for part, held in outlet.holders:
            memory.add(part, held)
        for readback in (self._readback, context.deferred):
            memory.add("transfer", readback.held_bytes)
        samples = RangeSamples(context.governor, measuring, home, bus) if self._samples else None
        self._notices = Notices(context)
        self._schedulers = SchedulerSensor(context)
        self._ledger = IterationLedger(
            bus=bus,
            iteration=self._iteration,
            losses=context.losses,
            readback=self._readback,
            registry=context.registry,
            judge=self.diagnosis,
            samples=samples,
            clock=context.clock,
            schedulers=self._schedulers,
        )
        self._memory = MemorySensor(context)
        self._births = BirthSensor(context) if self._samples else None
        self._census = OpCensusSensor(context) if self._samples else None
        self._window = WindowSensor(context) if self._samples else None
        self._phases = PhaseSensor(context)
        self._layers = LayerSensor(context, outlet.identity) if self._samples else None
        self._replay = ReplaySensor(context, self._newest_plan) if self._samples else None
        is_taped = self._samples and settings.record_dir
        self._tape = TapeSensor(context, outlet.identity) if is_taped else None
        self._missed_steps: MissedSteps | None = None
        self._of_scaler = tuple(self._for_scaler())
        for sensor in self._sensors(samples):
            bus.add(sensor)
        # At `deep` every op is observed, and its region with it.
        bus.may_rest = settings.level != "deep"
        self._attachments: list[Attachment] = []
        self._complaints: set[str] = set()

    def _programs(self) -> Iterator[Sensor]:
        # Ranks that skip different openings would sample in different steps.
        if self._context.peers.world_size == 1:
            yield Programs(self._context, self.diagnosis.book)

    def _sensors(self, samples: RangeSamples | None) -> Iterator[Sensor]:
        """Yield the sensors of the level, in the order in which they are told of an event."""
        context = self._context
        where = Whereabouts(context, self.diagnosis, samples=self._samples)
        yield from (Failures(context), where, self._memory)
        yield from (AutocastBackwardSensor(context), ClippingSensor(context))
        # What is measured belongs to the iteration that the ledger closes: before the ledger.
        if samples is not None:
            if self._replay is not None:
                yield self._replay
            yield samples
            yield from self._programs()
            yield Planner(context.governor, self.bus)
        yield from self._of_scaler
        if samples is not None:
            if self._layers is not None:
                yield self._layers
            yield ActivationSensor(context, self._layers)
            yield WeightSensor(context)
            yield UpdateSensor(context)
            if context.peers.world_size > 1:
                yield ChecksumSensor(context)
            yield context.regions
            yield CollectiveSensor()
            yield InputSensor(context)
            yield from filter(None, (self._census, self._births, self._tape))
            yield LogitSensor(context)
            yield LossyCasts(context)
            yield Fp8Casts(context)
            yield Sums(context)
            yield Averages(context)
            yield WeightAdditions(context)
            yield ScatteredSums(context)
            yield AgedCasts(context)
            yield from (RefusedOps(context), WaitSensor(context))
            yield DeferredReads(context.deferred)
            if self._window is not None:
                yield self._window
        yield from self._of_steps()

    def _for_scaler(self) -> Iterator[Sensor]:
        """Yield the sensors that are made for the watched scaler, or for a training without one."""
        context = self._context
        if context.is_scaled:
            yield GradientUseSensor(context)
        if self._samples:
            yield (ScaledGradientSensor if context.is_scaled else DirectGradientSensor)(context)
            if context.is_scaled:
                yield from (FlushedGradientSensor(context), HandClips(context))
        if not context.is_scaled and self.bus.loss_scaler is None:
            yield UnscaledHalf(context)
        if context.scaler is not None:
            yield ReplicaSensor(context)
            return
        yield RootLosses(context)
        if self.bus.loss_scaler is None:
            self._missed_steps = MissedSteps(context)
            yield self._missed_steps

    def _change_scaler(self, _step: int) -> None:
        self.bus.forget_at_boundary(self._change_scaler)
        self._diagnosing.run(self._exchange)

    def _exchange(self) -> None:
        """Watch the training with the sensors of a scaler that was not handed in."""
        old, self._of_scaler = self._of_scaler, tuple(self._for_scaler())
        self.bus.exchange(old, self._of_scaler)
        if self._replay is not None:
            self.bus.ignore(self._replay, BackwardBegan)  # a loss that breaks no weight can wait
        self._missed_steps, self.bus.infers_scale = None, False
        self._ledger.settle()
        self.bus.emit(FactsChanged())

    def _of_steps(self) -> Iterator[Sensor]:
        """Yield the sensors of every level: those that follow steps and their time."""
        context = self._context
        yield AutocastSensor(context)
        yield self._notices
        yield self._phases
        # A scheduler's step belongs to the step of its optimizer: before the ledger.
        yield self._schedulers
        yield self._ledger
        yield StaleCastSensor(context)
        yield CompiledBackwardSensor(context)
        if self.bus.loss_scaler is None:
            yield ScalerSuccession(context, partial(self.bus.call_at_boundary, self._change_scaler))
        yield NoIteration(context, hears_calls=self._replay is not None)

    def install(self) -> None:
        """Place the hooks; if one cannot be placed, none stays."""
        account, me = self._account, get_ident()
        try:
            account.begin(me, 0)
            self._notices.record_facts()
            self.bus.install()
            self._notices.record_memory()
            self.diagnosis.check_layers()
            account.end(me, 0)
            account.restart()
        except BaseException:
            account.end(me, 0)
            self.remove()
            raise

    def remove(self) -> None:
        """Take everything off."""
        for attachment in reversed(self._attachments):
            attachment.remove()
        self.bus.remove()

    def add(self, attachment: Attachment) -> None:
        """Place something more, which comes off with the sensors."""
        attachment.install()
        self._attachments.append(attachment)

    @property
    def step(self) -> int:
        """Index of the open iteration."""
        return self._iteration.step

    @property
    def is_at_start(self) -> bool:
        """Whether no iteration has been seen to end."""
        return self._iteration.step == self._first_step

    def catch_up(self) -> None:
        """Judge what has reached the host and has not been judged yet. Never waits or raises.

        On the training thread only: from another one the training is left alone.
        """
        if get_ident() == self._iteration.thread:
            self._ledger.guard.run(self._ledger.deliver_arrived)

    def drain(self) -> None:
        """Deliver what is still on its way, within ``DRAIN_SECONDS``, and the last word on findings."""
        end = time.monotonic() + DRAIN_SECONDS
        guard = self._ledger.guard
        if self._missed_steps is not None:
            self._missed_steps.guard.run(self._missed_steps.end)
        guard.run(self._ledger.settle)
        guard.run(self._ledger.deliver_arrived)
        while self._readback.in_flight and not guard.off and time.monotonic() < end:
            time.sleep(0.001)
            guard.run(self._ledger.deliver_arrived)
        # What ran after the last update, or all there was, where no update ever came.
        census = None
        if self._census is not None:
            census = self._census.guard.run(self._census.unfinished, self._iteration.step)
        self._poll()
        if census is not None:
            self.diagnosis.observe_census(census, time.time_ns())
        births = self._births
        if births is not None:
            while births.in_flight and not births.guard.off and time.monotonic() < end:
                time.sleep(0.001)
                self._poll()
        self.diagnosis.end()
        self._diagnosing.run(self.diagnosis.ops.flush, time.time_ns())
        self._diagnosing.run(self.diagnosis.memory.flush)
        self._diagnosing.run(self.diagnosis.book.report_changes)
        self._diagnosing.run(self._notices.record_memory)

    def _poll(self) -> None:
        self._diagnosing.run(self._context.deferred.poll)
        if self._births is not None:
            self._births.guard.run(self._births.poll)

    def ended_by(self, error: BaseException) -> None:
        """Explain the exception that has ended the training, if it is a known one. Never raises."""
        self._ending.run(self._describe, error)

    def _describe(self, error: BaseException) -> None:
        context = self._context
        each = list(describe(error, self._iteration.step, context.names, context.registry))
        # The op at fault first: what it was refused for is its consequence.
        if self._births is not None and any(refuses_nonfinite(one.message) for one in each):
            self._births.guard.run(self._births.refused)
        for raised in each:
            self.diagnosis.observe(raised)

    @property
    def census(self) -> CensusRecord | None:
        """The newest op census; ``None`` before the first."""
        return self._diagnosing.run(self.diagnosis.ops.newest)

    @property
    def window(self) -> WindowRecord | None:
        """The newest profiler window; ``None`` before the first."""
        return None if self._window is None else self._window.newest

    def count_batch(self, samples: object, tokens: object) -> None:
        """Count what the open iteration trains on. Never raises because of what it is given."""
        problem = self._phases.count(samples, tokens)
        if problem:
            self._complain("batch()", problem)

    def error_budget(self, asked: Asked) -> ErrorBudget:
        """Return the error budget of the newest batch, or why there is none. Never raises."""
        if self._replay is None:
            return ErrorBudget(why_not=NOT_REPLAYED)
        if self._iteration.thread not in (0, get_ident()):
            return ErrorBudget(why_not="another thread trains; ask in that one")
        return self._replay.error_budget(asked)

    def layers(self) -> list[LayerRecord]:
        """Return the layers that have been called, and what was measured of the operands of their products."""
        return [] if self._layers is None else self._layers.records()

    def _newest_plan(self) -> PlanMade | None:
        return None if self._layers is None else self._layers.plan

    def follow(self, plan: Sequence[PlanRecord]) -> None:
        """Have it told when the training leaves a plan, which is given layer by layer."""
        if self._layers is not None:
            self._layers.follow(plan)

    def end_iteration(self, loss_scale: object, skipped: object) -> None:
        """End the open iteration by hand. Never raises because of what it is given."""
        if self._context.is_scaled:
            self._complain(
                "end_iteration(): the call is ignored",
                "iterations of this training end with scaler.update()",
            )
            return
        scale: object = None
        outcome: object = NOT_KNOWN
        try:
            scale = as_scale(loss_scale)
        except AnswerError as error:
            self._complain("end_iteration(): `loss_scale`", f"{error}; the scale is not known")
        try:
            outcome = as_outcome(skipped)
        except AnswerError as error:
            self._complain(
                "end_iteration(): `skipped`", f"{error}; whether the step was taken is not known"
            )
        self.bus.emit(EndCalled(None))
        self.bus.emit(EndReturned(scale, False if outcome is None else outcome))
        if self.bus.at_boundary:
            self.bus.settle()

    def _complain(self, about: str, sentence: str) -> None:
        # Once about the same thing: what is wrong with it may be another number in each iteration.
        if about not in self._complaints:
            self._complaints.add(about)
            logger.warning("%s: %s, training goes on", about, sentence)

    @property
    def last_step(self) -> LastStep:
        """The iteration that has ended last, with what is known of it."""
        judged, ended = self.diagnosis.last_step, self._iteration.step - 1
        if self._ledger.guard.off:
            return LastStep(ended, None, judged.loss_scale)
        if judged.step == ended:
            return judged
        step, skipped = self._ledger.verdict
        if step == ended:
            return LastStep(ended, bool(skipped), judged.loss_scale, skipped)
        return LastStep(ended, None, judged.loss_scale)

    def cost(self) -> SelfCost:
        """Return what watching has cost and missed so far."""
        errors = missed = 0
        for guard in self.bus.guards:
            errors += guard.errors
            missed += guard.missed
        dropped = self._readback.dropped + self._births_dropped + missed
        spent_ns = self._account.spent_ns + int(self._context.governor.hidden_ns)
        return SelfCost(spent_ns, errors, dropped)

    @property
    def _births_dropped(self) -> int:
        return 0 if self._births is None else self._births.dropped

    def sampling_cost(self) -> SamplingCost:
        """Return what sampling has cost and missed so far."""
        measuring, governor = self._context.measuring, self._context.governor
        return SamplingCost(
            governor.interval, measuring.dropped, measuring.refused, measuring.device_ns
        )

    def not_seen(self) -> list[str]:
        """Return, in sentences, what was not observed."""
        types = dict.fromkeys(device.type for device in self._home.devices)
        sentences = [sentence for sentence in map(limitation, types) if sentence]
        sentences += [
            f"sensor {guard.name} failed and was switched off"
            for guard in self.bus.guards
            if guard.off
        ]
        if self.is_at_start:
            sentences.append(
                "no step has been seen: neither scaler.update() nor, without a scaler, a step of"
                " an optimizer of this model, outside of compiled functions and captured graphs"
            )
        if self._readback.why_not:
            sentences.append(f"values of devices are not read: {self._readback.why_not}")
        if self._readback.dropped:
            sentences.append(f"{self._readback.dropped} iterations were not observed")
        sentences += self._memory.not_read()
        if self._samples:
            sentences += self._not_measured()
            sentences += [] if self._window is None else self._window.not_seen()
            sentences += self._not_counted()
        if self._replay is not None:
            sentences += self._replay.not_replayed()
        if self._tape is not None and self._tape.trouble:
            sentences.append(self._tape.trouble)
        return sentences

    def _not_measured(self) -> list[str]:
        measuring, names = self._context.measuring, self._context.names
        sentences = [*measuring.not_measured.values(), *self._context.memory.refused.values()]
        sentences += names.unread.values()
        sentences += [
            f"outputs of the modules in {name or 'the model'} are not measured one by one: it is TorchScript,"
            " in which no hooks are called"
            for name in names.scripted()
        ]
        if why := no_peak(self._home.device, self._context.settings):
            sentences.append(f"shares of the peak are not known: {why}")
        if measuring.dropped:
            sentences.append(
                f"{measuring.dropped} measurements of ranges were given up: the device was too far"
                " behind, or had no memory to spare"
            )
        if self.bus.runs_compiled:
            sentences.append(
                "outputs of modules are measured on a twin of the model that runs eagerly: compiled"
                " code keeps more of what it computes in float32, and may overflow later"
                if self._replay is not None and self._replay.is_sampling
                else "outputs of modules are not measured: compiled code runs, and hooks that come"
                ' and go would have it compiled again; replay="sampled" measures them on a twin'
            )
        return sentences

    def _not_counted(self) -> list[str]:
        governor, sentences = self._context.governor, []
        if self._births_dropped:
            sentences.append(
                f"in {self._births_dropped} iterations non-finite values were not followed from op"
                " to op: a CUDA graph was captured, there were too many ops, or the host fell"
                " behind"
            )
        forces_eager = self._context.settings.compiled_census == "force_eager"
        if governor.counts_one_by_one and self.bus.runs_compiled and not forces_eager:
            sentences.append(
                "ops are not counted one by one: compiled code runs, and computes a part of what it"
                " does without ops; profiler windows count them, and"
                ' compiled_census="force_eager" runs counted iterations uncompiled'
            )
            sentences.append(
                "non-finite values are followed through compiled code from op to op, not inside of"
                " what is fused: there the first op that reads them is named"
                if SEES_COMPILED
                else "non-finite values are not followed from op to op: compiled code runs, and"
                " before PyTorch 2.10 it would run otherwise"
            )
        if self._census is not None and self._census.closed:
            classes = ", ".join(sorted(self._census.closed))
            sentences.append(
                f"ops on tensors of {classes} are not seen: the class does not say which tensors it is"
                " made of (__tensor_flatten__)"
            )
        if governor.uncountable:
            sentences.append(
                f"ops are not counted one by one any more: {governor.uncountable} was met, which"
                " PyTorch computes otherwise while anybody looks; profiler windows count ops: on a"
                " GPU, elsewhere with window_seconds=600"
            )
        return sentences


def _device_rows(names: Names) -> int:
    """Return how many tensors an iteration may have: of each kind all, of outputs some each."""
    parameters = sum(1 for _ in names.parameters())
    buffers = sum(1 for _ in names.buffers())
    leaves = sum(1 for _ in names.leaf_modules())
    return min(MAX_DEVICE_ROWS, MIN_DEVICE_ROWS + 4 * parameters + buffers + 4 * leaves)


def _scale_of(scaler: torch.amp.GradScaler | None) -> float:
    # At set-up a sync is allowed, and a run may be joined after it has begun.
    return scaler.get_scale() if scaler is not None and scaler.is_enabled() else math.nan
