"""What watches one training: sensors, guards, readback and diagnosis, wired together."""

from __future__ import annotations

import math
import time
from threading import get_ident
from typing import TYPE_CHECKING

from ampwatch.diagnosis.evidence.iteration import SamplingCost
from ampwatch.diagnosis.pipeline import Diagnosis, Known, LastStep, SelfCost
from ampwatch.guard import Account, Guard
from ampwatch.training.iteration.boundaries import BoundarySensor
from ampwatch.training.iteration.ledger import ROW_WIDTH, Clock, IterationLedger
from ampwatch.training.kernels.choice import KernelChoice
from ampwatch.training.model.facts import run_facts
from ampwatch.training.model.layers import layer_shapes
from ampwatch.training.model.machine import machine_of
from ampwatch.training.model.names import Names
from ampwatch.training.model.optimizers import OptimizerRegistry
from ampwatch.training.sensors.autocast.backward_roots import BackwardSensor
from ampwatch.training.sensors.autocast.compiled_backward import CompiledBackwardSensor
from ampwatch.training.sensors.autocast.dtypes import AutocastSensor
from ampwatch.training.sensors.autocast.stale_casts import StaleCastSensor
from ampwatch.training.sensors.scaler.loss_scale import DEVICES, LossScaleSensor
from ampwatch.training.sensors.scaler.optimizer_steps import OptimizerStepSensor
from ampwatch.training.sensors.scaler.replicas import ReplicaSensor
from ampwatch.training.sensors.scaler.schedulers import SchedulerSensor
from ampwatch.training.sensors.scaler.succession import ScalerSuccession
from ampwatch.training.transfer.readback import Readback
from ampwatch.training.wiring.calls import ApiWatch
from ampwatch.training.wiring.ops import OpWatch
from ampwatch.training.wiring.ranges import RangeWatch
from ampwatch.wire.records import FactsRecord

if TYPE_CHECKING:
    import torch

    from ampwatch.settings import Settings
    from ampwatch.training.hooks.sensor import Sensor
    from ampwatch.training.outlet import Outlet
    from ampwatch.training.targets import Targets
    from ampwatch.wire.records import CensusRecord, WindowRecord

SAMPLED_LEVELS = ("standard", "deep")
"""Levels that measure ranges."""

DRAIN_SECONDS = 1.0
"""How long the end waits for values that are still on the device: a device that hangs
must not hang the end of the program as well."""


class Instruments:
    """The parts that watch one training. Building them attaches nothing.

    Args:
        targets: What is watched.
        settings: Thresholds and sizes.
        outlet: Where records and findings go.
        first_step: Index of the iteration that is open; not 0 where others went before.

    Attributes:
        diagnosis: What became of the steps.
        boundaries: Tells when an iteration has closed.
    """

    def __init__(
        self, targets: Targets, settings: Settings, outlet: Outlet, *, first_step: int = 0
    ) -> None:
        self._scaler = targets.scaler
        self._device = targets.device
        self._outlet = outlet
        self._peak_flops = settings.peak_flops
        self._samples = settings.level in SAMPLED_LEVELS
        self._readback = Readback(settings.readback_slots, ROW_WIDTH)
        # Scaler and optimizer hook write into one ledger: if one fails, so does the
        # other. Schedulers and diagnosis run inside the calls of those two.
        self._account = account = Account()
        self._steps, self._entering = Guard("steps", account), Guard("autocast", account)
        self._looking = Guard("schedulers", account)
        self._succeeding, self._going_back = (
            Guard("succession", account),
            Guard("backward", account),
        )
        self._diagnosing = Guard("diagnosis", account)
        self._replicating = Guard("replicas", account, is_thread_safe=True)
        self._autocast = AutocastSensor(self._entering, self.tell_facts)
        scaled = targets.scaler is not None and targets.scaler.is_enabled()
        registry = OptimizerRegistry(targets.optimizers, targets.models, scaled=scaled)
        kernels = KernelChoice(settings)
        self._ranges = RangeWatch(targets, settings, registry, kernels.of, account)
        self.diagnosis = Diagnosis(
            settings,
            _scale_of(targets.scaler),
            put=outlet.put,
            tell=outlet.tell,
            cost=self.cost,
            sampling_cost=self.sampling_cost,
            known=Known(
                self._autocast.dtypes,
                self._ranges.lost_eps,
                machine_of(targets.device, settings),
                layer_shapes(Names(targets.models)) if self._samples else (),
            ),
            run_guarded=self._diagnosing.run,
        )
        self._ranges.focus = self.diagnosis.focus
        self._ops = OpWatch(
            targets, settings, self._ranges.sampler, outlet, account, self.diagnosis.observe
        )
        schedulers = SchedulerSensor(self._looking)
        self._ledger = IterationLedger(
            self._readback,
            registry,
            self.diagnosis,
            self._ranges,
            self._ops,
            schedulers.moved,
            Clock(),
        )
        self._ops.wants_trace = lambda: self.diagnosis.wants_trace
        self._ops.wants_inputs = lambda: self.diagnosis.wants_inputs
        self._ops.wants_ops = lambda: self.diagnosis.wants_ops
        self._ops.losses = self._ledger.losses
        self._api = ApiWatch(
            targets, registry, lambda: self._ledger.step, self.diagnosis.observe, account
        )
        self._ledger.step = self._ops.step = self._first_step = first_step
        # Ranges first: what they measure belongs to the iteration that the others close.
        self._sensors: list[Sensor] = [
            *self._api.sensors,
            *((*self._ranges.sensors, *self._ops.sensors) if self._samples else ()),
            self._autocast,
            schedulers,
            OptimizerStepSensor(targets.scaler, self._ledger, self._steps),
        ]
        names, observe = Names(targets.models), self.diagnosis.observe
        stale = StaleCastSensor(names, self._ledger, self._going_back, observe)
        compiled = CompiledBackwardSensor(
            names, self._ledger, self._going_back, observe, is_scaled=scaled
        )
        backwards = BackwardSensor(
            targets.scaler,
            self._ledger,
            self._api.backwards,
            self._going_back,
            stale=stale,
            compiled=compiled,
        )
        self._sensors += [stale, compiled, backwards]
        if targets.scaler is not None:
            follower = LossScaleSensor(
                targets.scaler, self._ledger, registry, self._steps, self.tell_facts
            )
            self._sensors += [
                follower,
                ScalerSuccession(
                    targets.scaler,
                    follower,
                    self._ledger,
                    self._succeeding,
                    observe,
                    self._ranges.follow,
                ),
                ReplicaSensor(targets.scaler, self._ledger, registry, self._replicating, observe),
            ]

        # Last, so that it comes when the others are done with an iteration.
        self.boundaries = BoundarySensor(targets.scaler, self._ledger)
        self._sensors.append(self.boundaries)

    def install(self) -> None:
        """Place the hooks; if one cannot be placed, none stays."""
        try:
            self.tell_facts()
            if self._device is not None and self._device.type in DEVICES[1:]:
                self._readback.prepare()
            if self._device is not None and self._samples:
                self._ranges.measuring.prepare(self._device)
            for sensor in self._sensors:
                sensor.install()
            self._ops.opened()
            self.diagnosis.look_at_layers()
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Take everything off."""
        for sensor in reversed(self._sensors):
            sensor.remove()

    def add(self, sensor: Sensor) -> None:
        """Place one more sensor, which comes off with the others."""
        sensor.install()
        self._sensors.append(sensor)

    @property
    def step(self) -> int:
        """Index of the open iteration."""
        return self._ledger.step

    def catch_up(self) -> None:
        """Judge what has reached the host and has not been judged yet. Never waits or raises.

        On the training thread only: from another one the training is left alone.
        """
        if get_ident() == self._ledger.thread:
            self._steps.run(self._ledger.deliver_arrived)

    def drain(self) -> None:
        """Deliver what is still on its way, within ``DRAIN_SECONDS``, and the last word on findings."""
        end = time.monotonic() + DRAIN_SECONDS
        guard = self._steps
        guard.run(self._ledger.deliver_arrived)
        while self._readback.in_flight and not guard.off and time.monotonic() < end:
            time.sleep(0.001)
            guard.run(self._ledger.deliver_arrived)
        # What ran after the last update, or all there was, where no update ever came.
        census = self._ops.unfinished(self._ledger.step)
        if census is not None:
            self.diagnosis.look_at(census, time.time_ns())
        while self._ops.in_flight and time.monotonic() < end:
            time.sleep(0.001)
            self._ops.poll()
        self.diagnosis.end()
        self._diagnosing.run(self.diagnosis.ops.flush, time.time_ns())
        self._diagnosing.run(self.diagnosis.book.retell_all)

    def ended_by(self, error: BaseException) -> None:
        """Explain the exception that has ended the training, if it is a known one. Never raises."""
        self._api.ended_by(error)

    @property
    def census(self) -> CensusRecord | None:
        """The newest op census; ``None`` before the first."""
        return self._diagnosing.run(self.diagnosis.ops.newest)

    @property
    def window(self) -> WindowRecord | None:
        """The newest profiler window; ``None`` before the first."""
        return self._ops.newest_window

    @property
    def last_step(self) -> LastStep:
        """The iteration that has ended last, with what is known of it."""
        judged, ended = self.diagnosis.last_step, self._ledger.step - 1
        if self._steps.off:
            return LastStep(ended, None, judged.loss_scale)
        if judged.step == ended:
            return judged
        step, skipped = self._ledger.verdict
        if step == ended:
            return LastStep(ended, bool(skipped), judged.loss_scale, skipped)
        return LastStep(ended, None, judged.loss_scale)

    def tell_facts(self) -> None:
        """Record what does not change from step to step, as it is now."""
        facts = run_facts(self._scaler, self._autocast.dtypes, self._device)
        if self._peak_flops:
            facts["peak_flops"] = self._peak_flops
        self._outlet.put(FactsRecord(facts))

    def cost(self) -> SelfCost:
        """Return what watching has cost and missed so far."""
        errors = sum([g.errors for g in self._guards])
        missed = sum([g.missed for g in self._guards])
        return SelfCost(
            self._account.spent_ns, errors, self._readback.dropped + self._ops.dropped + missed
        )

    def sampling_cost(self) -> SamplingCost:
        """Return what sampling has cost and missed so far."""
        measuring = self._ranges.measuring
        return SamplingCost(
            self._ranges.sampler.interval,
            measuring.dropped,
            measuring.refused,
            measuring.device_ns,
        )

    @property
    def _guards(self) -> tuple[Guard, ...]:
        first = (
            *(self._steps, self._entering, self._looking, self._diagnosing),
            *(self._succeeding, self._going_back, self._replicating),
        )
        return (*first, *self._ranges.guards, *self._ops.guards, *self._api.guards)

    def not_seen(self) -> list[str]:
        """Return, in sentences, what was not observed."""
        sentences = [f"sensor {g.name} failed and was switched off" for g in self._guards if g.off]
        if self._ledger.step == self._first_step:
            sentences.append(
                "no step has been seen: neither scaler.update() nor, without a scaler, a step of"
                " an optimizer of this model, outside of compiled functions"
            )
        if self._readback.dropped:
            sentences.append(f"{self._readback.dropped} iterations were not observed")
        if self._samples:
            sentences += self._ranges.not_seen() + self._ops.not_seen()
        return sentences


def _scale_of(scaler: torch.amp.GradScaler | None) -> float:
    # At set-up a sync is allowed, and a run may be joined after it has begun.
    return scaler.get_scale() if scaler is not None and scaler.is_enabled() else math.nan
