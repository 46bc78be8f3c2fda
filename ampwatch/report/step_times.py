"""Where the time of a step goes, in numbers and words: the same on the page, in reports, in a terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.report.words import number, percent, plural, step_time
from ampwatch.wire.records import StepPhase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.wire.blackbox import Box
    from ampwatch.wire.records import DevicePhasesRecord, Phases, StepRecord

NEWEST_STEPS = 128
"""Newest steps whose times are taken together: several times as many as a DataLoader has workers, of which
each may make one step wait and the others not."""

WARM_UP_STEPS = 16
"""Steps at the beginning that are left out once there are others: caches fill, code is compiled."""

MIN_SHARE = 1e-3
"""Share of a step from which on a phase is named: below it neither a strip nor anybody can see it."""

MAX_NAMED = 3
"""Phases that are named in one line."""


class PhaseShare(NamedTuple):
    """What one phase has of a step.

    Attributes:
        phase: The phase.
        seconds: Its mean time. Unit: s.
        share: That as a share of the mean step.
    """

    phase: StepPhase
    seconds: float
    share: float


class Breakdown(NamedTuple):
    """Where the time of some of the newest steps went.

    A mean, not a median: those of the phases add up to the step, and a wait that comes once in some steps,
    as for one of several workers, is in it.

    Attributes:
        phases: Mean time of each phase. Unit: s.
        steps: Steps that were timed.
        newest: Newest steps that were looked at.
        on_device: Whether the times are those of the device.
    """

    phases: Phases
    steps: int
    newest: int
    on_device: bool

    @property
    def seconds(self) -> float:
        """The mean step. Unit: s."""
        return sum(self.phases)

    @property
    def shares(self) -> list[PhaseShare]:
        """The phases that have at least ``MIN_SHARE``, in their order."""
        return [
            PhaseShare(phase, seconds, seconds / self.seconds)
            for phase, seconds in zip(StepPhase, self.phases, strict=True)
            if seconds >= MIN_SHARE * self.seconds
        ]

    @property
    def source(self) -> str:
        """By whose clock it is, and of how many steps."""
        clock = "device's" if self.on_device else "host's"
        of = "" if self.steps == self.newest else f"{number(self.steps)} of "
        return f"by the {clock} clock, mean of {of}the newest {plural(self.newest, 'step')}"

    @property
    def unseen(self) -> list[str]:
        """What was not seen, in sentences; empty as a rule."""
        unseen = []
        if not self.phases[StepPhase.DATA]:
            unseen.append("No DataLoader was seen: a wait for data would be part of the rest.")
        if self.phases[StepPhase.STEP]:
            unseen.append(
                "In some steps neither calls of the model nor backward were seen: they are whole."
                if self.phases[StepPhase.FORWARD]
                else "Calls of the model were not seen, nor backward: all of it may be compiled."
            )
        elif not self.phases[StepPhase.FORWARD]:
            unseen.append("Calls of the model were not seen: forward is part of the rest.")
        return unseen

    @property
    def line(self) -> str:
        """The step and its largest phases, as in "2 s: 60 % waiting for data, 25 % forward"."""
        largest = sorted(self.shares, key=lambda share: -share.seconds)[:MAX_NAMED]
        named = ", ".join(f"{percent(share.share)} {share.phase.words}" for share in largest)
        return f"{step_time(self.seconds)}: {named}"


def breakdown(
    steps: Sequence[StepRecord], timed: Sequence[DevicePhasesRecord] = ()
) -> Breakdown | None:
    """Return where the time of the newest steps went; ``None`` if nobody knows.

    By the clock of the device where that has timed one of them: the host is ahead of it.

    Args:
        steps: The newest steps, in order. Of more than ``NEWEST_STEPS`` the older ones are passed over.
        timed: Iterations that the device has timed, in order.

    Cost: 20 us.
    """
    newest = steps[-NEWEST_STEPS:]
    if not newest:
        return None
    of_device = [record for record in timed if record.step >= newest[0].step]
    records: Sequence[StepRecord | DevicePhasesRecord] = of_device or newest
    # A report can have times below zero, of which no phase has a share.
    known = [(record.step, record.phases) for record in records if sum(record.phases) > 0]
    # Of the first iteration nobody knows how long it took.
    first = newest[0].step if math.isnan(newest[0].duration_s) else 0
    settled = [phases for step, phases in known if step >= first + WARM_UP_STEPS]
    taken = settled or [phases for _, phases in known]
    if not taken:
        return None
    means = tuple(math.fsum(times) / len(taken) for times in zip(*taken, strict=True))
    return Breakdown(means, len(taken), len(newest), bool(of_device))  # type: ignore[arg-type] # one of each phase


def breakdown_of(box: Box) -> Breakdown | None:
    """Return where the time of the newest steps went that a rank has left; ``None`` if nobody knows."""
    return breakdown(box.steps, box.device_phases)


def notes(box: Box, breakdown: Breakdown) -> list[str]:
    """Return what is noted below a breakdown: what was trained on in a second, and what was not seen."""
    trained = rates(box.steps).words
    first = [f"Trained on {' and '.join(trained)} per second."] if trained else []
    return [*first, *breakdown.unseen]


class Rates(NamedTuple):
    """What is trained on in a second, as the program says.

    Attributes:
        samples: Samples a second; ``None`` where the program does not say it.
        tokens: Tokens a second, likewise.
    """

    samples: float | None = None
    tokens: float | None = None

    @property
    def words(self) -> list[str]:
        """Each rate that is known, as in "512 samples"."""
        totals = (("samples", self.samples), ("tokens", self.tokens))
        return [f"{three_digits(rate)} {noun}" for noun, rate in totals if rate is not None]


def three_digits(value: float) -> str:
    """Write a rate: its digits beyond the third would be different in the next second."""
    return number(float(f"{value:.3g}"))


def rates(steps: Sequence[StepRecord]) -> Rates:
    """Return what was trained on in a second over the newest steps, from the difference of their totals.

    Args:
        steps: The newest steps, in order. Of more than ``NEWEST_STEPS`` the older ones are passed over.
    """
    newest = steps[-NEWEST_STEPS:]
    return Rates(
        _rate([(step.time_ns, step.total_samples) for step in newest]),
        _rate([(step.time_ns, step.total_tokens) for step in newest]),
    )


def _rate(totals: Sequence[tuple[int, int]]) -> float | None:
    points = [(time_ns, total) for time_ns, total in totals if total >= 0]
    if not points:
        return None
    (began, first), (ended, last) = points[0], points[-1]
    return (last - first) * 1e9 / (ended - began) if ended > began else None
