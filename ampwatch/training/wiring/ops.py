"""Everything that looks at single ops, and the profiler window, wired together.

The op census, the births of non-finite values, what rounds away, and inputs of models.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.guard import Account, Guard
from ampwatch.numerics.units.ops import OpKind
from ampwatch.training.hooks.compiling import may_compile
from ampwatch.training.hooks.regions import Regions
from ampwatch.training.iteration.governor import Look
from ampwatch.training.iteration.ledger import Clock
from ampwatch.training.model.names import Names
from ampwatch.training.model.tf32 import allows_tf32
from ampwatch.training.ops.listener import GuardedListeners
from ampwatch.training.sensors.autocast.aged_casts import AgedCasts
from ampwatch.training.sensors.births.birth_log import BirthLog
from ampwatch.training.sensors.births.births import BirthListener
from ampwatch.training.sensors.births.following import BirthFollower
from ampwatch.training.sensors.ops.census import OpCensusSensor
from ampwatch.training.sensors.ops.inputs import InputSensor
from ampwatch.training.sensors.ops.refused import RefusedOps
from ampwatch.training.sensors.window.requests import TraceRequests
from ampwatch.training.sensors.window.sensor import WindowSensor
from ampwatch.training.transfer.deferred import Deferred
from ampwatch.training.transfer.losses import LossSum
from ampwatch.training.wiring.rounding import rounding_listeners

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor

    from ampwatch.diagnosis.evidence.births import OpTrace
    from ampwatch.diagnosis.evidence.ops import OpCensus, Window
    from ampwatch.settings import Settings
    from ampwatch.training.hooks.sensor import Sensor
    from ampwatch.training.iteration.governor import Sampler
    from ampwatch.training.ops.listener import OpListener
    from ampwatch.training.outlet import Outlet
    from ampwatch.training.targets import Targets
    from ampwatch.wire.records import WindowRecord


class OpWatch:
    """Counts ops in the iterations that the governor chooses, and opens profiler windows.

    Implements ``iteration.Ops``. Nothing in here raises.

    Args:
        targets: What is watched.
        settings: ``level``, ``op_census``, ``compiled_census``, and those of the window.
        sampler: Says which iterations are counted.
        outlet: Where records go, and beside whose ring traces are asked for.
        account: Where the time of all of them is counted, except the window's own.
        observe: Takes what is learnt of the open iteration.

    Attributes:
        guards: The guards of the sensors.
        step: Index of the open iteration.
        wants_trace: Asked whether something has failed, so that the next iteration is traced.
        wants_inputs: Asked whether something failed lately.
        wants_ops: Asked whether something may be rounding away.
        losses: The losses of the open iteration.
        newest_window: The newest record of a window, ``None`` before the first.
    """

    def __init__(
        self,
        targets: Targets,
        settings: Settings,
        sampler: Sampler,
        outlet: Outlet,
        account: Account,
        observe: Callable[[object], None],
    ) -> None:
        regions, census, births, rounding, inputs = (
            Guard(name, account, is_thread_safe=True)
            for name in ("regions", "census", "births", "rounding", "inputs")
        )
        # The first start of a profiler takes a second; as a debt it would end all sampling.
        window = Guard("window", Account())
        self.guards = [regions, census, births, rounding, inputs, window]
        self.newest_window: WindowRecord | None = None
        self._outlet = outlet
        self._sampler = sampler
        self._census_guard = census
        self._sweeping = Guard("census", account)
        self._regions = Regions(regions)
        self._one_by_one = settings.level == "deep" or settings.op_census != "window"
        self._forces_eager = settings.compiled_census == "force_eager"
        self._traces_all = settings.level == "deep"
        self._is_off = settings.level not in ("standard", "deep")
        self._scaler = targets.scaler
        self._observe = observe
        self.wants_trace: Callable[[], bool] = lambda: False
        self.wants_inputs: Callable[[], bool] = lambda: False
        self.wants_ops: Callable[[], bool] = lambda: False
        self.losses = LossSum()
        names = Names(targets.models)
        self._late_births = BirthLog(
            names, self._deliver, self._is_stepping, self._scale, self._loss_parts
        )
        follower = BirthFollower(
            BirthListener(names, self._deliver_known, self._is_stepping, self._scale),
            self._late_births,
            is_host=is_host(targets.device),
        )
        self._births = GuardedListeners(births, (follower,))
        self._births_guard = births
        self._census = OpCensusSensor(
            names,
            self._regions,
            account,
            census,
            may_force_eager=self._forces_eager,
        )
        self._deferred = Deferred()
        listeners = [
            *rounding_listeners(names, observe, self._deferred),
            AgedCasts(names, self._regions, observe),
            RefusedOps(self._regions, observe),
        ]
        self._rounding = GuardedListeners(rounding, listeners)
        self._rounding_guard = rounding
        self._inputs_guard = inputs
        self._inputs = InputSensor(names, self._deferred, observe, inputs)
        self._window: WindowSensor | None = None
        if targets.device is not None:
            self._window = WindowSensor(
                settings,
                targets.device,
                window,
                self._put,
                Clock(),
                requests=TraceRequests(lambda: outlet.ring_path),
                is_compiled=may_compile,
                wants_census=self._wants_window_census,
                allows_tf32=lambda: allows_tf32(OpKind.MATMUL),
            )
        self._is_counting = False
        self.step = 0
        self._charged_ns = 0

    @property
    def sensors(self) -> Sequence[Sensor]:
        """The sensors, in the order in which they are installed."""
        window = () if self._window is None else (self._window,)
        return (self._regions, self._census, self._inputs, *window)

    def _wants_window_census(self) -> bool:
        """Whether ops are counted from profiler windows, since they are not one by one."""
        is_given_up = bool(self._census.altered or self._census.uncounted)
        is_compiled = may_compile() and not self._forces_eager
        return not self._one_by_one or is_compiled or is_given_up

    def closed(self, step: int, duration_s: float) -> tuple[OpCensus | None, Window | None]:
        """An iteration has ended; return what was seen of its ops and kernels."""
        census = self._count(step, duration_s)
        self.step = step + 1
        self.poll()
        window = self._window
        if window is None:
            return census, None
        window.boundary(step + 1, duration_s, sampled=bool(self._sampler.wanted))
        self._sampler.is_held = window.is_open
        self._sampler.owe(window.cost_ns - self._charged_ns)
        self._charged_ns = window.cost_ns
        return census or window.census(step), window.take(step)

    def opened(self) -> None:
        """The next iteration begins; the sampler has decided what is looked at."""
        if self._is_off:
            return
        alert = self._sampler.is_opening or self.wants_inputs()
        self._inputs_guard.run(self._look_at_inputs, alert and not self._traces_all)
        counts = self._one_by_one and Look.OPS in self._sampler.wanted
        looks = counts or (self._one_by_one and self._sampler.is_opening)
        follows = self._traces_all or self.wants_trace() or looks
        if counts or follows or (self._one_by_one and self.wants_ops()):
            listeners = (self._births, self._rounding) if follows else (self._rounding,)
            self._is_counting = bool(self._census_guard.run(self._begin, listeners, counts))

    def _look_at_inputs(self, wanted: bool) -> None:  # noqa: FBT001 - of the guard
        self._inputs.begin(self.step, wanted=wanted)

    def _begin(self, listeners: Sequence[OpListener], count: bool) -> bool:  # noqa: FBT001 - of the guard
        return self._census.begin(self.step, listeners=listeners, count=count)

    def unfinished(self, step: int) -> OpCensus | None:
        """Return what was seen of the ops of the open iteration, which will not end."""
        census = self._count(step, float("nan"))
        self.poll()
        return census

    @property
    def in_flight(self) -> int:
        """How many iterations that were followed are on their way to the host."""
        return 0 if self._births_guard.off else self._late_births.in_flight

    @property
    def dropped(self) -> int:
        """Iterations that were to be followed, and could not be."""
        return self._late_births.dropped

    def poll(self) -> None:
        """Take in what has reached the host. Never waits."""
        if self._deferred.in_flight:
            self._rounding_guard.run(self._deferred.poll)
        if self._late_births.in_flight:
            self._births_guard.run(self._late_births.poll)

    def _count(self, step: int, duration_s: float) -> OpCensus | None:
        if not self._is_counting:
            return None
        self._is_counting = False
        census = self._census_guard.run(self._census.end, step, duration_s)
        if self._census_guard.off:
            # It has failed somewhere in the iteration: nothing of it is to stay on.
            self._sweeping.run(self._census.stop)
        return census

    def _scale(self) -> Tensor | None:
        return getattr(self._scaler, "_scale", None)

    def _is_stepping(self) -> bool:
        return self._census.is_stepping

    def _loss_parts(self) -> tuple[float | None, Tensor | None]:
        losses = self.losses
        return losses.on_host if losses.num_losses else None, losses.on_device

    def _deliver_known(self, trace: OpTrace) -> None:
        """Take what was seen of the open iteration."""
        loss = self.losses.known()
        trace.loss_nonfinite = None if loss is None else not math.isfinite(loss)
        self._deliver(trace)

    def _deliver(self, trace: OpTrace) -> None:
        trace.is_scaled = self._scaler is not None and self._scaler.is_enabled()
        self._observe(trace)

    def _put(self, record: WindowRecord) -> None:
        self.newest_window = record
        self._outlet.put(record)

    def not_seen(self) -> list[str]:
        """Return, in sentences, what could not be counted."""
        sentences = [] if self._window is None else self._window.not_seen()
        if self.dropped:
            sentences.append(
                f"in {self.dropped} iterations non-finite values were not followed from op to op:"
                " a CUDA graph was captured, there were too many ops, or the host fell behind"
            )
        if self._one_by_one and may_compile() and not self._forces_eager:
            sentences.append(
                "ops are not counted one by one: torch.compile was called in this process, and"
                " compiled code would run otherwise; profiler windows count them, and"
                ' compiled_census="force_eager" runs counted iterations uncompiled'
            )
        met = self._census.altered or self._census.uncounted
        if met:
            sentences.append(
                f"ops are not counted one by one any more: {met} was met, which"
                " PyTorch computes otherwise while anybody looks; profiler windows count ops: on a"
                " GPU, elsewhere with window_seconds=600"
            )
        return sentences


def is_host(device: torch.device | None) -> bool:
    """Whether what is on a device can be read at once; so it is assumed where none is known."""
    return device is None or device.type == "cpu"
