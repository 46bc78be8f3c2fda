"""One watched training: the one place that builds the parts and connects them."""

from __future__ import annotations

import math
import time
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

from ampwatch import laboratory
from ampwatch.diagnosis.detector import Known
from ampwatch.diagnosis.evidence.iteration import SamplingCost
from ampwatch.diagnosis.pipeline import Diagnosis, LastStep, SelfCost
from ampwatch.guard import Account, Guard, Log
from ampwatch.training import families
from ampwatch.training.devices import is_readable, limitation
from ampwatch.training.hooks import events as on
from ampwatch.training.hooks.bus import Bus, OpenIteration
from ampwatch.training.hooks.places import PLACES
from ampwatch.training.hooks.regions import Regions
from ampwatch.training.iteration.context import Context
from ampwatch.training.iteration.governor import Governor
from ampwatch.training.iteration.ledger import ROW_WIDTH, Clock, IterationLedger
from ampwatch.training.iteration.programs import Programs
from ampwatch.training.iteration.samples import RangeSamples
from ampwatch.training.kernels.choice import kernel_for
from ampwatch.training.memory import MemoryBudget, limit_of
from ampwatch.training.model.facts import layer_shapes
from ampwatch.training.model.home import Home
from ampwatch.training.model.living import alive
from ampwatch.training.model.machine import machine_of
from ampwatch.training.model.names import Names
from ampwatch.training.model.optimizers import OptimizerRegistry, Trained
from ampwatch.training.ops.events import OP_EVENTS
from ampwatch.training.ops.mode import USERS_MODES
from ampwatch.training.other_ranks import Shards
from ampwatch.training.replay.raised import Ending
from ampwatch.training.replay.sensor import ReplaySensor
from ampwatch.training.scalers.loss_scaler import NOT_KNOWN, AnswerError, as_outcome, as_scale
from ampwatch.training.sensors.calls.exceptions import describe
from ampwatch.training.sensors.facts import Notices
from ampwatch.training.sensors.ops.census import OpCensusSensor
from ampwatch.training.sensors.origins.sensor import OriginSensor
from ampwatch.training.sensors.ranges.activations import ActivationSensor
from ampwatch.training.sensors.scaler.missed_steps import MissedSteps
from ampwatch.training.sensors.scaler.schedulers import SchedulerSensor
from ampwatch.training.sensors.scaler.succession import ScalerSuccession
from ampwatch.training.sensors.time.phases import PhaseSensor
from ampwatch.training.sensors.window.sensor import WindowSensor
from ampwatch.training.transfer.deferred import Deferred
from ampwatch.training.transfer.losses import LossSum
from ampwatch.training.transfer.measuring import Measuring
from ampwatch.training.transfer.readback import Readback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.detector import Detector
    from ampwatch.settings import Settings
    from ampwatch.training.hooks.sensor import Sensor
    from ampwatch.training.outlet import Outlet
    from ampwatch.training.sensors.ranges.activations import CallListener
    from ampwatch.training.targets import Targets
    from ampwatch.wire.blackbox import Box
    from ampwatch.wire.records import CensusRecord, RunIdentity, WindowRecord


class Part(Protocol):
    """The part of one training.

    Attributes:
        sensors: Sensors that are notified of events after those that measure values.
        calls: Is notified of the calls of modules.
    """

    sensors: Sequence[Sensor]
    calls: CallListener

    def describe(self, box: Box) -> None:
        """Add to a report what is not in the records."""


class PartModule(Protocol):
    """The module of a part.

    Attributes:
        DETECTORS: Detectors that come after all others.
    """

    DETECTORS: Sequence[type[Detector]]

    def make(self, context: Context, identity: RunIdentity, replays: ReplaySensor) -> Part:
        """Return the part of a training."""


def part_of(settings: Settings) -> PartModule | None:
    """Return the part that the settings ask for; ``None`` without one."""
    if settings.lab == "off":
        return None
    part: PartModule = laboratory.load("training.part")
    return part


logger = Log()

_S = TypeVar("_S", bound="Sensor")

SAMPLED_LEVELS = ("standard", "deep")
"""Levels at which values are measured and ops are observed, now and then or always."""

READBACK_SLOTS = 64
"""Iterations whose values may be on their way from the device; more are dropped and counted."""

MAX_PROBES = 256
"""Names of tensors that are measured: a name made of the step would be another one each time."""

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
        part: The laboratory's part; ``None`` where it is off, or nothing is measured.
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
            kernel_for,
            _device_rows(names),
            memory=memory,
            with_blocks=settings.lab == "on",
        )
        trained = Trained(names, targets.optimizers)
        bus.ownership.optimizers = lambda: alive(trained.met.values())
        self._home = home = Home(names, trained)
        readable = all(is_readable(device.type) for device in home.devices)
        samples_values = settings.level in SAMPLED_LEVELS and readable
        lab = part_of(settings) if samples_values else None
        machine = machine_of(home.device, settings)
        layers = layer_shapes(names) if samples_values else ()
        # At set-up a sync is allowed, and a run may be joined after it has begun.
        given = targets.scaler
        self.diagnosis = Diagnosis(
            settings,
            math.nan if given is None or not given.is_enabled() else given.get_scale(),
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
            more=() if lab is None else lab.DETECTORS,
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
            samples=samples_values,
        )
        for part, held in outlet.holders:
            memory.add(part, held)
        for readback in (self._readback, context.deferred):
            memory.add("transfer", readback.held_bytes)
        samples = RangeSamples(context) if context.samples else None
        schedulers = SchedulerSensor(context)
        self._ledger = IterationLedger(
            bus=bus,
            iteration=self._iteration,
            losses=context.losses,
            readback=self._readback,
            registry=context.registry,
            judge=self.diagnosis,
            samples=samples,
            clock=context.clock,
            schedulers=schedulers,
        )
        self._notices = Notices(context)
        self._made: dict[object, Sensor] = {
            SchedulerSensor: schedulers,
            IterationLedger: self._ledger,
            Notices: self._notices,
            Regions: context.regions,
        }
        make = partial(
            families.make,
            context=context,
            made=self._made,
            makers={
                Programs: partial(Programs, context, self.diagnosis.book),
                ScalerSuccession: partial(
                    ScalerSuccession, context, partial(bus.call_at_boundary, self._change_scaler)
                ),
            },
        )
        if samples is not None:
            self._made[RangeSamples] = samples
        first = make(families.FIRST)
        self._of_scaler = make(families.OF_SCALER)
        self.part = self._make_part(lab, outlet)
        of_values = make(families.OF_VALUES)
        of_part = () if self.part is None else self.part.sensors
        self._made |= {type(sensor): sensor for sensor in of_part}
        of_steps = make(families.OF_STEPS)
        for sensor in (*first, *self._of_scaler, *of_values, *of_part, *of_steps):
            bus.add(sensor)
        # At `deep` every op is observed, and its region with it.
        bus.may_rest = settings.level != "deep"
        self._attachments: list[Attachment] = []
        self._complaints: set[str] = set()
        self._probes: set[str] = set()

    def _make_part(self, lab: PartModule | None, outlet: Outlet) -> Part | None:
        """Return the laboratory's part; ``None`` where it is off, or nothing is measured."""
        replays = self._one(ReplaySensor)
        if lab is None or replays is None:
            return None
        part = lab.make(self._context, outlet.identity, replays)
        self._made[ActivationSensor] = ActivationSensor(self._context, part.calls)
        return part

    def _change_scaler(self, _step: int) -> None:
        self.bus.forget_at_boundary(self._change_scaler)
        self._diagnosing.run(self._exchange)

    def _exchange(self) -> None:
        """Watch the training with the sensors of a scaler that was not handed in."""
        old = self._of_scaler
        for sensor in old:
            del self._made[type(sensor)]
        self._of_scaler = families.make(families.OF_SCALER, self._context, self._made, {})
        self.bus.exchange(old, self._of_scaler)
        replay = self._one(ReplaySensor)
        if replay is not None:
            # What breaks no weight can wait.
            self.bus.ignore(replay, on.BackwardBegan)
            self.bus.ignore(replay, on.OptimizerStepping)
            self.bus.ignore(replay, on.OptimizerStepped)
        self.bus.infers_scale = False
        self._ledger.settle()
        self.bus.emit(on.FactsChanged())

    def _one(self, kind: type[_S]) -> _S | None:
        made = self._made.get(kind)
        return made if isinstance(made, kind) else None

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
        missed_steps, op_census = self._one(MissedSteps), self._one(OpCensusSensor)
        if missed_steps is not None:
            missed_steps.guard.run(missed_steps.end)
        guard.run(self._ledger.settle)
        guard.run(self._ledger.deliver_arrived)
        while self._readback.in_flight and not guard.off and time.monotonic() < end:
            time.sleep(0.001)
            guard.run(self._ledger.deliver_arrived)
        # What ran after the last update, or all there was, where no update ever came.
        census = None
        if op_census is not None:
            census = op_census.guard.run(op_census.unfinished, self._iteration.step)
        self._poll()
        if census is not None:
            self.diagnosis.observe_census(census, time.time_ns())
        origins = self._one(OriginSensor)
        if origins is not None:
            while origins.in_flight and not origins.guard.off and time.monotonic() < end:
                time.sleep(0.001)
                self._poll()
        self.diagnosis.end()
        self._diagnosing.run(self.diagnosis.ops.flush, time.time_ns())
        self._diagnosing.run(self.diagnosis.memory.flush)
        self._diagnosing.run(self.diagnosis.book.report_changes)
        self._diagnosing.run(self._notices.record_memory)

    def _poll(self) -> None:
        self._diagnosing.run(self._context.deferred.poll)
        origins = self._one(OriginSensor)
        if origins is not None:
            origins.guard.run(origins.poll)

    def ended_by(self, error: BaseException | None) -> None:
        """Explain what has ended the training, as far as it is known. Never raises.

        Args:
            error: The exception; ``None`` where the program has not closed its monitor.
        """
        if error is None or isinstance(error, (Exception, SystemExit)):
            self._ending.run(self._describe, error)

    def _describe(self, error: BaseException | None) -> None:
        context = self._context
        self.catch_up()
        ending = Ending.by(error)
        # The op at fault first: what it was refused for is its consequence.
        origins, replays = self._one(OriginSensor), self._one(ReplaySensor)
        if origins is not None and ending.is_of_nonfinite:
            origins.guard.run(origins.refused)
        if replays is not None:
            replays.guard.run(replays.ended, ending)
        for raised in describe(
            error,
            self._iteration.step,
            context.names,
            context.registry,
            context.autocast_dtypes,
        ):
            self.diagnosis.observe(raised)

    @property
    def census(self) -> CensusRecord | None:
        """The newest op census; ``None`` before the first."""
        return self._diagnosing.run(self.diagnosis.ops.newest)

    @property
    def window(self) -> WindowRecord | None:
        """The newest profiler window; ``None`` before the first."""
        window = self._one(WindowSensor)
        return None if window is None else window.newest

    def count_batch(self, samples: object, tokens: object) -> None:
        """Count what the open iteration trains on. Never raises because of what it is given."""
        phases = self._one(PhaseSensor)
        problem = phases.count(samples, tokens) if phases is not None else ""
        if problem:
            self._complain("batch()", problem)

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
        self.bus.emit(on.EndCalled(None))
        self.bus.emit(on.EndReturned(scale, False if outcome is None else outcome))
        if self.bus.at_boundary:
            self.bus.settle()

    def probed(self, name: str, tensor: object) -> None:
        """Measure a tensor that the program has named, if this iteration measures outputs. Never raises."""
        sensor = self._one(ActivationSensor)
        if sensor is None or sensor.guard is None:
            return
        if not isinstance(tensor, torch.Tensor) or not (isinstance(name, str) and name):
            # The types alone: a tensor in place of the name would be waited for, to be printed.
            given = f"{type(name).__name__} and {type(tensor).__name__}"
            expected = f"expected a name and a tensor, got {given}"
            self._complain("probe()", f"{expected}; it is not measured")
        elif name not in self._probes and len(self._probes) >= MAX_PROBES:
            expected = f"expected {MAX_PROBES} names at most, got one more"
            self._complain("probe() of many names", f"{expected}; it is not measured")
        else:
            self._probes.add(name)
            if sensor.measures_probes:
                sensor.guard.run(sensor.probe, name, tensor)

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
        origins = self._one(OriginSensor)
        dropped = self._readback.dropped + missed + (0 if origins is None else origins.dropped)
        spent_ns = self._account.spent_ns + int(self._context.governor.hidden_ns)
        return SelfCost(spent_ns, errors, dropped)

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
        for sensor in self._made.values():
            # Each behind a guard of its own: one that fails must not take the report with it.
            guard = Guard(sensor.name, self._account)
            sentences += guard.run(lambda one=sensor: list(one.not_seen())) or ()
        return sentences


def _device_rows(names: Names) -> int:
    """Return how many tensors an iteration may have: of each kind all, of outputs some each."""
    parameters = sum(1 for _ in names.parameters())
    buffers = sum(1 for _ in names.buffers())
    leaves = sum(1 for _ in names.leaf_modules())
    return min(MAX_DEVICE_ROWS, MIN_DEVICE_ROWS + 4 * parameters + buffers + 4 * leaves)
