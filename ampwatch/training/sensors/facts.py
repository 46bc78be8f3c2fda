"""Sensors of what does not change from step to step: facts, dtypes of autocast, failures of sensors, and where the training is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ampwatch.diagnosis.evidence.ops import TrainingMoved
from ampwatch.guard import Log
from ampwatch.training.devices import HOST, is_readable
from ampwatch.training.hooks import events as on
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.kernels.dtypes import name_of
from ampwatch.training.model.facts import layer_shapes, ranks, run_facts
from ampwatch.training.model.machine import machine_of
from ampwatch.training.native import core
from ampwatch.training.private import is_enabled_region
from ampwatch.wire.records import WITHOUT_C, FactsRecord, SensorFailureRecord

if TYPE_CHECKING:
    from ampwatch.training.iteration.context import Context

logger = Log()

MAX_MESSAGE = 400
"""Characters of an exception that are recorded; its traceback is in the log."""


class Notices(Sensor):
    """Records what does not change from step to step, when it changes."""

    name = "notices"
    is_thread_safe = True

    def __init__(self, context: Context) -> None:
        self._context = context
        self._held: dict[str, str] = {}

    def tensors_swapping(self, _event: on.TensorsSwapping) -> None:
        """Refer to no parameter meanwhile."""
        self._context.names.let_go()
        self._context.trained.let_go()

    def facts_changed(self, _event: on.FactsChanged) -> None:
        """Record the facts anew."""
        self.record_facts()

    def iteration_planned(self, _event: on.IterationPlanned) -> None:
        """Record what memory is held, where that has changed."""
        self.record_memory()

    def record_memory(self) -> None:
        """Record what memory is held, where that has changed. Never in a quiet step."""
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


class AutocastSensor(Sensor):
    """Notes the dtype of every enabled ``torch.autocast`` region that gradients are recorded in.

    A region inside a compiled function is not entered by Python and is not seen.
    """

    name = "autocast"
    rests = True

    def __init__(self, context: Context) -> None:
        self._bus = context.bus
        self._dtypes = context.autocast_dtypes
        self._last: torch.dtype | None = None

    def autocast_entering(self, event: on.AutocastEntering) -> None:
        """Note the dtype of the region that begins."""
        region = event.region
        dtype = region.fast_dtype
        # Evaluation and teachers may run in another dtype than the training does.
        if dtype is self._last or not is_enabled_region(region) or not torch.is_grad_enabled():
            return
        self._last = dtype
        name = name_of(dtype)
        if name not in self._dtypes:
            self._dtypes.append(name)
            self._bus.emit(on.FactsChanged())


class Failures(Sensor):
    """Records sensors that fail, at once: the records of steps may be what has ended."""

    name = "failures"
    is_thread_safe = True

    def __init__(self, context: Context) -> None:
        self._context = context

    def sensor_failed(self, event: on.SensorFailed) -> None:
        """Record which sensor has failed, in which iteration and of what."""
        sensor, errors, error = event
        message = f"{type(error).__name__}: {error}"[:MAX_MESSAGE]
        step = self._context.iteration.step
        self._context.out.put(SensorFailureRecord(sensor, errors, step, message))


class Whereabouts(Sensor):
    """Notices at the end of the first iteration that a training is not where it was at set-up."""

    name = "device"

    def __init__(self, context: Context) -> None:
        self._context = context

    def installed(self) -> None:
        """Have sensors do at set-up what is slow."""
        types = {device.type for device in self._context.home.devices}
        if types and all(map(is_readable, types)):
            self._context.bus.emit(on.DevicesKnown(has_accelerator=types != {HOST}))

    def iteration_closed(self, _event: on.IterationClosed) -> None:
        """Look once: by now all parameters are where they are going to be."""
        self.is_dormant = True
        self._compare_ranks()
        context = self._context
        home, before = context.home, context.home.device
        if not home.update():
            return
        self.installed()
        if home.device == before:
            return  # some parameters have been left elsewhere, or an optimizer has more of them
        if before is not None:
            logger.warning(
                "the model has moved from %s to %s since ampwatch.monitor(): set-up was done again in"
                " the first iteration; call monitor() after model.to()",
                before,
                home.device,
            )
        layers = layer_shapes(context.names) if context.samples else ()
        context.observe(TrainingMoved(machine_of(home.device, context.settings), layers))
        context.bus.emit(on.FactsChanged())

    def _compare_ranks(self) -> None:
        rank, _, world_size = ranks()
        known = self._context.peers.world_size
        if world_size != known:
            logger.warning(
                "this is rank %d of %d since torch.distributed.init_process_group(); ampwatch.monitor()"
                " was called before it and knows of %d: effects between ranks are not observed, and ranks may be taken"
                " for one another; call monitor() after init_process_group(), or set RANK,"
                " LOCAL_RANK and WORLD_SIZE as torchrun does",
                rank,
                world_size,
                known,
            )
