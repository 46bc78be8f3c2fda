"""Where the time of the steps of one rank goes. No torch, no network."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.host.fleet.histogram import Histogram
from ampwatch.report.step_times import NEWEST_STEPS, breakdown, rates
from ampwatch.wire.records import DevicePhasesRecord, StepPhase, StepRecord

if TYPE_CHECKING:
    from ampwatch.host.fleet.histogram import Distribution
    from ampwatch.report.step_times import Breakdown, Rates
    from ampwatch.wire.records import Phases

PHASE_BOUNDS = (0.001, 0.004, 0.016, 0.064, 0.25, 1.0, 4.0, 16.0, 64.0)
"""Upper bounds for phases: four times the one before. A rank has a histogram for each phase. Unit: s."""

MAX_STEPS = 1024
"""Newest steps that are kept to be compared with those of other ranks. Of steps of less than a
millisecond some go by between two passes of the daemon: enough are left."""

HOST, DEVICE = "host", "device"
"""Values of the label ``clock``: by whose time a phase was measured."""


class StepPhases(NamedTuple):
    """The time of one step of a rank.

    Attributes:
        phases: Where it went, on the host. Unit: s.
        cpu_ns: CPU time of the training thread up to then; -1 where it is not known. Unit: ns.
        run_delay_ns: Time up to then in which that thread had no core, likewise. Unit: ns.
    """

    phases: Phases
    cpu_ns: int
    run_delay_ns: int


class PhaseTimes:
    """The phases of the steps of one rank.

    Attributes:
        newest: The newest step; -1 before the first.
        on_device: Phases of the newest iteration that its device has timed; ``None`` without any.

    Args:
        counted_from_ns: Unix time from which steps are counted: those of before were, by the daemon
            that was there. Unit: ns.
    """

    def __init__(self, counted_from_ns: int) -> None:
        self.newest = -1
        self.on_device: DevicePhasesRecord | None = None
        self._from_ns = counted_from_ns
        self._histograms: dict[tuple[StepPhase, str], Histogram] = {}
        self._steps: dict[int, StepPhases] = {}
        self._device_steps: dict[int, Phases] = {}
        self._newest_records = deque[StepRecord](maxlen=NEWEST_STEPS)
        self._newest_timed = deque[DevicePhasesRecord](maxlen=NEWEST_STEPS)

    def put(self, record: StepRecord) -> None:
        """Take in a step; steps of a rank come in order."""
        self.newest = record.step
        self._newest_records.append(record)
        self._steps[record.step] = StepPhases(record.phases, record.cpu_ns, record.run_delay_ns)
        if len(self._steps) > MAX_STEPS:
            del self._steps[next(iter(self._steps))]
        self._count(record.phases, record.time_ns, HOST)

    def put_device(self, record: DevicePhasesRecord) -> None:
        """Take in an iteration as its device has seen it."""
        self.on_device = record
        self._newest_timed.append(record)
        self._device_steps[record.step] = record.phases
        if len(self._device_steps) > MAX_STEPS // 4:
            del self._device_steps[next(iter(self._device_steps))]
        self._count(record.phases, record.time_ns, DEVICE)

    def _count(self, phases: Phases, time_ns: int, clock: str) -> None:
        if time_ns < self._from_ns:
            return
        for phase, seconds in zip(StepPhase, phases, strict=True):
            if seconds > 0.0:
                key = phase, clock
                if key not in self._histograms:
                    self._histograms[key] = Histogram(PHASE_BOUNDS)
                self._histograms[key].observe(seconds)

    def distributions(self) -> list[tuple[tuple[str, str], Distribution]]:
        """Return the histogram of each phase that was seen, by the values of phase and clock."""
        return [
            ((phase.label, clock), histogram.distribution())
            for (phase, clock), histogram in sorted(self._histograms.items())
        ]

    @property
    def breakdown(self) -> Breakdown | None:
        """Where the time of the newest steps went; ``None`` if that is not known."""
        return breakdown(list(self._newest_records), list(self._newest_timed))

    @property
    def rates(self) -> Rates:
        """What is trained on in a second."""
        return rates(list(self._newest_records))

    @property
    def oldest(self) -> int:
        """The oldest step that is still known; 0 before the first."""
        return next(iter(self._steps), 0)

    @property
    def ready(self) -> int:
        """The newest step whose time is known by the clock that counts; -1 before the first."""
        if self.on_device is None:
            return self.newest
        return min(self.newest, self.on_device.step)

    def of(self, step: int) -> StepPhases | None:
        """Return the time of a step; ``None`` if it is not known, or not any more.

        That of the device where it reports one: the host is ahead of it.
        """
        known = self._steps.get(step)
        if known is None or self.on_device is None:
            return known
        timed = self._device_steps.get(step)
        return None if timed is None else known._replace(phases=timed)
