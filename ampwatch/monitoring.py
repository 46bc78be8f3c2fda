"""``monitor(model, scaler)``: wires sensors, diagnosis and ring, and takes everything off again."""

from __future__ import annotations

import atexit
import logging
import math
import os
import socket
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any

import ampwatch
from ampwatch.attaching import Targets, check_targets
from ampwatch.diagnosis.pipeline import Diagnosis, LastStep, SelfCost
from ampwatch.errors import RingError, StateError
from ampwatch.exporters.report import Summary, render
from ampwatch.launcher import daemon_is_running, ensure_daemon
from ampwatch.records import (
    EndRecord,
    FactsRecord,
    Finding,
    FindingRecord,
    RunIdentity,
    RunState,
    Severity,
)
from ampwatch.ring import RingWriter
from ampwatch.runtime import ring_directories
from ampwatch.sensors.autocast import AutocastSensor
from ampwatch.sensors.guard import Guard
from ampwatch.sensors.iteration import ROW_WIDTH, Clock, IterationLedger
from ampwatch.sensors.loss_scale import LossScaleSensor
from ampwatch.sensors.optimizer_steps import OptimizerStepSensor
from ampwatch.sensors.optimizers import OptimizerRegistry
from ampwatch.sensors.readback import Readback
from ampwatch.sensors.run_facts import ranks, run_facts
from ampwatch.sensors.schedulers import SchedulerSensor
from ampwatch.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    import torch
    from torch import nn
    from torch.optim import Optimizer
    from typing_extensions import Self

    from ampwatch.records import Record
    from ampwatch.sensors.base import Sensor

__all__ = ["LastStep", "Monitor", "monitor"]

logger = logging.getLogger(__name__)

_open: list[Monitor] = []
"""The monitors that are attached; it keeps alive those that nobody else holds."""

DRAIN_SECONDS = 1.0
"""How long ``close`` waits for values that are still on the device: a device that
hangs must not hang the end of the program as well."""


def monitor(
    model: nn.Module | Sequence[nn.Module] | None,
    scaler: torch.amp.GradScaler | None = None,
    *,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    level: str | None = None,
    run: str | None = None,
    serve: bool = True,
    **settings: Any,
) -> Monitor:
    """Watch a mixed-precision training until it ends; the training loop stays as it is.

    Args:
        model: The model, a list of models, or ``None``.
        scaler: The GradScaler, enabled or not, or ``None`` (bfloat16, float32).
        optimizer: The optimizers; those that step through the scaler, or that hold
            parameters of the model, are found by themselves.
        level: How much is watched: ``off``, ``light``, ``standard`` or ``deep``.
        run: Name of the run, stable between restarts; the script's name by default.
        serve: Whether to write a ring and to start the host's daemon if none runs.
            Without it nothing leaves the process: no file, no port, findings only.
        settings: Any setting of ``ampwatch.settings.Settings`` by name.

    Returns:
        The monitor; it need not be kept. Used as a context manager it ends with the
        block, else with ``close()`` or the program.

    Raises:
        AttachError: If an argument cannot be watched.
        SettingsError: If a setting or an ``AMPWATCH_*`` variable is not usable.
        StateError: If the model or the scaler is watched already.

    Cost:
        Set-up some 10 ms. In training about 20 us a step on the CPU and no host sync;
        no thread.
    """
    resolved = Settings.resolve({"level": level, "run": run, **settings})
    targets = check_targets(model, scaler, optimizer)
    for other in tuple(_open):
        other._close_if_abandoned()  # noqa: SLF001 - same module
        other._refuse_to_share(targets)  # noqa: SLF001
    return Monitor(targets, resolved, serve=serve)


class Monitor:
    """One watched training. Made by ``ampwatch.monitor``.

    Attributes:
        settings: The checked settings.
        identity: Run, rank and process.
        url: Where the page and ``/metrics`` are; empty without a daemon.
    """

    def __init__(self, targets: Targets, settings: Settings, *, serve: bool) -> None:
        self.settings = settings
        self.url = ""
        self.identity = _identity(settings)
        self._models = tuple(weakref.ref(m) for m in targets.models)
        self._scaler = targets.scaler
        self._device = targets.device
        self._callbacks: list[tuple[Guard, Callable[[Finding], None]]] = []
        self._guards: list[Guard] = []
        self._sensors: list[Sensor] = []
        self._ring: RingWriter | None = None
        self._closed = False
        self._wire(targets)
        if settings.level == "off":
            self._closed = True
            return
        if serve:
            self._serve()
        self._install()

    @property
    def findings(self) -> list[Finding]:
        """The findings so far, in the order in which they were made. Still there after ``close``."""
        return self._diagnosis.book.findings

    @property
    def last_step(self) -> LastStep:
        """The newest iteration whose outcome is known, without a sync."""
        return self._diagnosis.last_step

    def on_finding(self, callback: Callable[[Finding], None]) -> None:
        """Call ``callback(finding)`` when a finding is made, on the training thread.

        A callback that raises is logged once and not called again.

        Raises:
            StateError: If the monitor is closed.
        """
        if self._closed:
            msg = "expected an open monitor, got one that is closed; call ampwatch.monitor() again"
            raise StateError(msg)
        self._callbacks.append((Guard(f"on_finding {callback!r}"), callback))

    def report(self) -> str:
        """Return the run in words: what happened, where, since when, what to change."""
        totals = self._diagnosis.totals
        skipped = [sum(n) for n in zip(*totals.skipped.values(), strict=True)] or [0, 0, 0, 0]
        summary = Summary(
            run=self.identity.run,
            rank=self.identity.rank,
            iterations=self._diagnosis.iterations,
            steps=sum(totals.steps.values()),
            skipped=skipped,
            loss_scale=self.last_step.loss_scale,
            growths=totals.growths,
            backoffs=totals.backoffs,
            nonfinite_losses=totals.nonfinite_losses,
            not_seen=self._not_seen(),
        )
        return render(summary, self.findings)

    def close(self) -> None:
        """Take everything off: hooks, taps, ring. Idempotent; findings stay readable."""
        self._close(RunState.FINISHED, "")

    def __enter__(self) -> Self:
        if self._closed and self.settings.level != "off":
            msg = "expected an open monitor, got one that is closed; call ampwatch.monitor() again"
            raise StateError(msg)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close(*_how_it_ended(error))

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"open, step {self.last_step.step}"
        return f"<ampwatch.Monitor run={self.identity.run!r} rank={self.identity.rank} {state} {self.url}>"

    def _wire(self, targets: Targets) -> None:
        """Build the parts; nothing is attached yet."""
        settings, scaler = self.settings, targets.scaler
        # Both write into one ledger: if one of them fails, so does the other.
        guard = self._guard("steps")
        self._autocast = AutocastSensor(self._guard("autocast"), self._tell_facts)
        # These run inside the calls of the others; their time is counted there.
        inner, look_up = Guard("diagnosis"), Guard("schedulers")
        self._inner_guards = [inner, look_up]
        schedulers = SchedulerSensor(look_up)
        self._readback = Readback(settings.readback_slots, ROW_WIDTH)
        registry = OptimizerRegistry(targets.optimizers, targets.models)
        self._diagnosis = Diagnosis(
            settings,
            _scale_of(scaler),
            put=self._put,
            tell=self._tell,
            cost=self._cost,
            autocast_dtypes=self._autocast.dtypes,
            run_guarded=inner.run,
        )
        ledger = IterationLedger(
            self._readback, registry, self._diagnosis, schedulers.moved, Clock()
        )
        self._ledger = ledger
        self._sensors = [
            self._autocast,
            schedulers,
            OptimizerStepSensor(scaler, ledger, guard),
        ]
        if scaler is not None:
            self._sensors.append(LossScaleSensor(scaler, ledger, registry, guard))

    def _guard(self, name: str) -> Guard:
        guard = Guard(name)
        self._guards.append(guard)
        return guard

    def _serve(self) -> None:
        """Make the ring and see that a daemon reads it; trouble is a warning, not an error."""
        settings = self.settings
        try:
            directories = ring_directories(settings.ring_dir, settings.runtime_dir)
            self._ring = RingWriter.create(directories, self.identity, slots=settings.ring_slots)
        except RingError as error:
            logger.warning("ampwatch: no ring, so findings only, no page and no metrics: %s", error)
            return
        if self._ring.fell_back:
            logger.warning("ampwatch: %s", self._ring.fell_back)
        status = ensure_daemon(settings)
        self.url = status.url
        if status.message:
            logger.warning("ampwatch: %s", status.message)
        logger.info("ampwatch: watching run %s: %s", self.identity.run, self.url)

    def _install(self) -> None:
        try:
            for sensor in self._sensors:
                sensor.install()
        except BaseException:
            self._close(RunState.FAILED, "the sensors could not be installed")
            raise
        self._tell_facts()
        _open.append(self)
        atexit.register(self._at_exit)

    def _put(self, record: Record) -> None:
        if self._ring is not None:
            self._ring.put(record)

    def _tell_facts(self) -> None:
        self._put(FactsRecord(run_facts(self._scaler, self._autocast.dtypes, self._device)))

    def _tell(self, finding: Finding, *, new: bool) -> None:
        self._put(FindingRecord(finding))
        if not new:
            return
        if finding.severity is not Severity.INFO:
            logger.warning("ampwatch: %s: %s. %s", finding.kind, finding.summary, finding.advice)
        for guard, callback in self._callbacks:
            guard.run(callback, finding)

    def _cost(self) -> SelfCost:
        return SelfCost(
            overhead_ns=sum(g.spent_ns for g in self._guards),
            sensor_errors=sum(g.errors for g in (*self._guards, *self._inner_guards)),
            observations_dropped=self._readback.dropped,
        )

    def _not_seen(self) -> list[str]:
        guards = (*self._guards, *self._inner_guards)
        sentences = [f"sensor {g.name} failed and was switched off" for g in guards if g.off]
        if self._readback.dropped:
            sentences.append(f"{self._readback.dropped} iterations were not observed")
        return sentences

    def _close(self, state: RunState, reason: str) -> None:
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        self._drain()
        for sensor in reversed(self._sensors):
            sensor.remove()
        if self in _open:
            _open.remove(self)
        if self._ring is not None:
            # A daemon that runs takes the rest and removes the file; without one
            # nobody would.
            keep = daemon_is_running(self.settings)
            self._ring.close(EndRecord(state, reason, time.time_ns()), keep=keep)

    def _drain(self) -> None:
        end = time.monotonic() + DRAIN_SECONDS
        guard = Guard("drain")
        guard.run(self._ledger.deliver_arrived)
        while self._readback.in_flight and not guard.off and time.monotonic() < end:
            time.sleep(0.001)
            guard.run(self._ledger.deliver_arrived)
        guard.run(self._diagnosis.book.retell_all)

    def _at_exit(self) -> None:
        # The interpreter leaves an uncaught exception here before it runs us; an
        # interactive one leaves there every error the user has ever made.
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        self._close(*_how_it_ended(error))

    def _close_if_abandoned(self) -> None:
        if self._models and all(reference() is None for reference in self._models):
            self.close()

    def _refuse_to_share(self, targets: Targets) -> None:
        if self._closed:
            return
        mine = [self._scaler, *(reference() for reference in self._models)]
        asked = [targets.scaler, *targets.models]
        shared = [x for x in asked if x is not None and any(x is y for y in mine)]
        if shared:
            msg = (
                f"expected objects that nobody watches yet, got a {type(shared[0]).__qualname__} that"
                f" {self!r} watches; close that monitor first, or use `with ampwatch.monitor(...)`"
            )
            raise StateError(msg)


def _how_it_ended(error: BaseException | None) -> tuple[RunState, str]:
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return RunState.FINISHED, ""
    if isinstance(error, KeyboardInterrupt):
        return RunState.FINISHED, "interrupted from the keyboard"
    return RunState.FAILED, f"{type(error).__name__}: {error}"


def _scale_of(scaler: torch.amp.GradScaler | None) -> float:
    # At set-up a sync is allowed, and a run may be joined after it has begun.
    return scaler.get_scale() if scaler is not None and scaler.is_enabled() else math.nan


def _identity(settings: Settings) -> RunIdentity:
    rank, local_rank, world_size = ranks()
    return RunIdentity(
        run=settings.run_name,
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        pid=os.getpid(),
        host=socket.gethostname(),
        started_ns=time.time_ns(),
        version=ampwatch.__version__,
    )
