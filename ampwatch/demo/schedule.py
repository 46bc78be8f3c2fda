"""The history of the demo: how long it is healthy, when it breaks, when it is over. No torch here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SECONDS = 120.0
HEALTHY_SECONDS = 60.0

FAULTY_STEPS = 120
"""Steps of the collapse that are shown. The scale halves in each of them, and from its
usual 65536 it takes 144 halvings until 1/scale is infinite."""


@dataclass(frozen=True, slots=True)
class Limit:
    """End of the demo: a number of steps or of seconds, whichever is first; by default never."""

    steps: float = math.inf  # steps of training
    seconds: float = math.inf  # seconds of training. Unit: s

    def share(self, steps: int, seconds: float) -> float:
        """Return how much of the way to the limit is behind us: 1 or more when it is reached."""
        return max(steps / self.steps, seconds / self.seconds)


@dataclass(frozen=True, slots=True)
class DemoSchedule:
    """Schedule of the demo: when the fault is planted, and when it is over."""

    end: Limit  # when it is over at the latest
    fault: Limit  # when the fault is planted


@dataclass(frozen=True, slots=True)
class Moment:
    """A step in the schedule of the demo."""

    step: int  # its number, from 0
    faulty: bool  # whether the fault is planted
    share: float  # how much of this phase, healthy or faulty, is behind us, from 0 to 1


def usual_schedule(
    *, steps: int | None = None, seconds: float = SECONDS, healthy: bool = False
) -> DemoSchedule:
    """Return a schedule that breaks after a minute, but half way at the latest.

    Args:
        steps: When it is over at the latest.
        seconds: Likewise. Unit: s.
        healthy: Never plant a fault.
    """
    end = Limit(steps or math.inf, seconds)
    half = Limit(end.steps / 2, min(HEALTHY_SECONDS, end.seconds / 2))
    return DemoSchedule(end, Limit() if healthy else half)


def moments(schedule: DemoSchedule, clock: Callable[[], float]) -> Iterator[Moment]:
    """Yield one moment per training step until the demo is over.

    Args:
        schedule: What is to happen when.
        clock: Monotonic time. Unit: s.
    """
    begin = clock()
    step = planted_at = 0
    planted_over: float | None = None
    while True:
        at = (step, clock() - begin)
        over, broken = schedule.end.share(*at), schedule.fault.share(*at)
        if over >= 1.0:
            return
        if planted_over is None and broken >= 1.0:
            planted_at, planted_over = step, over
        if planted_over is None:
            share = max(over, broken)
        else:
            left = (over - planted_over) / (1.0 - planted_over)
            share = max(left, (step - planted_at) / FAULTY_STEPS)
        if share >= 1.0:
            return
        yield Moment(step, planted_over is not None, share)
        step += 1
