"""Measurements of an iteration on their way to the host: ranges, and single values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ampwatch.diagnosis.evidence.iteration import Attention
from ampwatch.training.hooks.events import IterationPlanned
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.iteration.governor import OF_OPS
from ampwatch.training.model.machine import no_peak
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration, TensorRange
    from ampwatch.training.hooks import events as on
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.transfer.measuring import Sample

FAR_FALL = 2.0**-10
"""Ratio of the loss scale to that of the newest sample of gradients from which that sample says
nothing any more of what is left of them. Noisy gradients and probes fall by far less."""


class DeferredReads(Sensor):
    """Hands over the values that sensors have asked for and that have reached the host."""

    name = "deferred"
    batched = frozenset({"iteration_closed"})

    def __init__(self, context: Context) -> None:
        self._deferred = context.deferred

    def devices_known(self, event: on.DevicesKnown) -> None:
        """Pin memory."""
        if event.has_accelerator:
            self._deferred.prepare()

    def iteration_closed(self, _event: on.IterationClosed) -> None:
        """Hand over what has arrived. Never waits."""
        if self._deferred.flying:
            self._deferred.poll()


class Planner(Sensor):
    """Moves the governor on from iteration to iteration, and reports its plan to those who measure.

    It stands before the sensors that measure: the governor has planned an iteration when the event
    of its beginning reaches them.
    """

    name = "governor"
    batched = frozenset({"iteration_opened"})

    def __init__(self, context: Context) -> None:
        self._governor = context.governor
        self._bus = context.bus
        self._step = self._first_step = context.iteration.step
        self._was_quiet = False
        self._sampled_scale = math.nan

    def failed(self) -> None:
        """Have nothing measured any more: the last plan is not to be carried out for ever."""
        self._governor.stop()
        self._bus.emit(IterationPlanned(self._step, Attention()))

    def iteration_opened(self, event: on.IterationOpened) -> None:
        """Plan what is measured in the iteration that begins."""
        governor = self._governor
        self._step = event.step
        attention = event.attention
        num = max(event.step - self._first_step - governor.step, 1)
        governor.next(event.duration_s, attention.probe_every, num)
        is_looking = governor.is_opening or governor.follows_ops
        wants_ops = is_looking or bool(governor.wanted & OF_OPS)
        is_quiet = not (governor.wanted or is_looking or attention.is_closer)
        if wants_ops or attention.is_closer:
            self._bus.wake(1)  # which region an op runs in
        # Between two quiet iterations nobody has to begin or end anything.
        if not (is_quiet and self._was_quiet):
            self._bus.emit(IterationPlanned(event.step, attention))
        self._was_quiet = is_quiet

    def iteration_arrived(self, event: on.IterationArrived) -> None:
        """Plan more samples after an alarm, after a streak of alarms, and after a far fall of the scale.

        One that was set by hand falls without any alarm.
        """
        has_fallen = self._has_fallen_far(event.iteration)
        if event.is_alarming:
            self._governor.alarm()
        elif (event.ends_alarm or has_fallen) and self._governor.calm():
            # Once for each fall, whatever becomes of the sample.
            self._sampled_scale = event.iteration.loss_scale

    def _has_fallen_far(self, iteration: Iteration) -> bool:
        """Whether the scale is far below that of the newest sample of gradients."""
        if Topic.GRADIENT in iteration.topics:
            self._sampled_scale = iteration.scale_before
        return iteration.loss_scale <= FAR_FALL * self._sampled_scale


class RangeSamples(Sensor):
    """Sends off what the sensors of ranges have measured, and takes in what has arrived.

    The ledger asks for it: a sample travels with its iteration. Nothing in here raises.
    """

    name = "ranges"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._governor = context.governor
        self._measuring = context.measuring
        self._home = context.home
        self.guard = self._guard = context.bus.guard(self.name, sweep=self.failed)

    def devices_known(self, _event: on.DevicesKnown) -> None:
        """Choose kernels, allocate and compile."""
        for device in self._home.devices:
            self._measuring.prepare(device)

    def failed(self) -> None:
        """Have no ranges measured any more: nobody would take them in."""
        self._governor.stop()

    @property
    def quiet(self) -> int:
        """Iterations, the open one included, before one in which something may be measured."""
        return self._governor.quiet

    def pass_by(self, num: int, duration_s: float) -> None:
        """Account for ``num`` quiet iterations that have ended, and took so long altogether (unit: s)."""
        self._guard.run(self._governor.pass_by, duration_s, num)

    def seal(self) -> Sample | None:
        """Send off what was measured; ``None`` if nothing was."""
        return self._guard.run(self._seal) if self._measuring.open.topics else None

    def _seal(self) -> Sample | None:
        sample = self._measuring.seal()
        if sample is not None:
            sample.parts = self._governor.part[1]
        return sample

    def take(self, sample: Sample) -> Sequence[TensorRange]:
        """Return the measurements of a sample that has arrived."""
        # run() returns None once the guard is off.
        return self._guard.run(self._take, sample) or ()

    def _take(self, sample: Sample) -> Sequence[TensorRange]:
        ranges = self._measuring.take(sample)
        if sample.counted_ns:
            self._governor.charge(frozenset(sample.topics), sample.parts, sample.counted_ns)
        return ranges

    def discard(self, sample: Sample) -> None:
        """Let go of a sample."""
        self._guard.run(self._measuring.discard, sample)

    def not_seen(self) -> Iterator[str]:
        """Yield, in sentences, what was not measured."""
        context, measuring = self._context, self._measuring
        yield from measuring.not_measured.values()
        yield from context.memory.refused.values()
        yield from context.names.unread.values()
        if why := no_peak(self._home.device, context.settings):
            yield f"shares of the peak are not known: {why}"
        if measuring.dropped:
            yield (
                f"{measuring.dropped} measurements of ranges were given up: the device was too far"
                " behind, or had no memory to spare"
            )
