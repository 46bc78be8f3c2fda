"""Findings about outputs of modules that approach the end of float16."""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.diagnosis.detector import Detector, Shared
from ampwatch.diagnosis.forward.kinds import HEADROOM_LOW
from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.written import counted
from ampwatch.wire.records import Topic, in_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.diagnosis.evidence.iteration import Iteration, TensorRange
    from ampwatch.diagnosis.steps.steps import StepVerdict


FLOAT16_MAX = FORMATS["float16"].max

LOW_FROM = FLOAT16_MAX / 4.0
"""Magnitude from which an output that rises is reported: two binary exponents below the largest number."""

POINTS = 24
"""Newest measurements of a module that a fast trend is fitted to."""

FAST_POINTS = 8
"""Newest measurements that are fitted by themselves, for a rise that is over in a dozen steps. Growth
by equal steps, as Adam makes it, is no line in the logarithm except over a few of them."""

MIN_POINTS = 4
"""Measurements that a line is fitted to at least: with 2 degrees of freedom it has an error of its own."""

CLEAR_TREND = 5.0
"""Standard errors from which a slope is a trend; through a few points it takes more, see
``_clear_from``. Independent values reach that in fewer than one fit in ten thousand, where there are many."""

JUMP_SHARE = 0.5
"""Share of a rise, beyond that of the trend, between two neighbouring measurements from which it is
one jump: outputs lie about a new level then, whatever line can be put through them."""

AHEAD_STEPS = 200
"""A trend that reaches the limit later than this is reported later, and what an output was longer
ago is forgotten. Unit: steps."""

FOCUS_FROM = 2.0**-6
"""Share of float16's largest number from which an output is measured in every iteration."""

FOCUS_STEPS = 48
"""Iterations that a module is measured in a row; then not again for ten times as long,
unless it has grown by a quarter."""

MAX_FOCUS = 8
"""Modules that are measured in every iteration at a time."""


class ForwardRange(Detector):
    """Follows the largest outputs of modules in float16.

    Attributes:
        focus: Names of the modules to measure in every iteration. The sensor holds this very set: it is changed
            in place.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.focus: set[str] = set()
        self._series: dict[str, deque[tuple[int, float]]] = {}
        self._focused: dict[str, tuple[int, float]] = {}

    def detect(self, iteration: Iteration, _verdict: StepVerdict) -> None:
        """Take in one judged iteration."""
        largest: dict[str, TensorRange] = {}
        for r in iteration.ranges:
            if r.topic is Topic.ACTIVATION and r.dtype == "float16":
                known = largest.get(r.name)
                if known is None or r.histogram.amax > known.histogram.amax:
                    largest[r.name] = r
        for name, r in largest.items():
            if r.histogram.nonfinite or not r.histogram.amax:
                self._series.pop(name, None)
            else:
                self._follow(name, r.histogram.amax, iteration.step)
        self._release_focus(iteration.step)

    @property
    def is_at_rest(self) -> bool:
        """Whether a quiet iteration would be nothing to it."""
        return not self.focus

    def _follow(self, name: str, amax: float, step: int) -> None:
        series = self._series.setdefault(name, deque())
        series.append((step, math.log2(amax)))
        while len(series) > POINTS and step - series[0][0] > AHEAD_STEPS:
            series.popleft()
        if amax >= FOCUS_FROM * FLOAT16_MAX:
            self._focus_on(name, amax, step)
        if amax >= LOW_FROM:
            ahead = steps_ahead(list(series), math.log2(FLOAT16_MAX))
            if ahead is not None and ahead <= AHEAD_STEPS:
                self._say(name, amax, step, ahead)

    def _focus_on(self, name: str, amax: float, step: int) -> None:
        since, then = self._focused.get(name, (-math.inf, 0.0))
        rested = step - since > 10 * FOCUS_STEPS or amax > 1.25 * then
        if name not in self.focus and len(self.focus) < MAX_FOCUS and rested:
            self.focus.add(name)
            self._focused[name] = (step, amax)

    def _release_focus(self, step: int) -> None:
        self.focus -= {n for n in self.focus if step - self._focused[n][0] >= FOCUS_STEPS}

    def _say(self, name: str, amax: float, step: int, ahead: float) -> None:
        evidence = {
            "amax": amax,
            "max": FLOAT16_MAX,
            "times_below_max": FLOAT16_MAX / amax,
            "steps_to_overflow": ahead,
        }
        says = (
            f"The output of {in_words(name)} had come to {amax:.6g} at step {step}, where float16 ends"
            f" at {FLOAT16_MAX:.6g}, and was rising: at that rate it overflows"
            f" {counted(ahead, 'step')} later"
        )
        self._book.report(
            HEADROOM_LOW,
            name,
            step,
            summary=says,
            phase="forward",
            dtype="float16",
            evidence=evidence,
        )


def steps_ahead(series: Sequence[tuple[int, float]], limit: float) -> float | None:
    """Return in how many steps a series is at ``limit``; ``None`` if it need not get there.

    The newest points show what is fast, all of them what is slow. A trend alone is not enough:
    an output that wanders about has one most of the time, up or down. What is on its way to
    the limit has already risen, since the oldest third of the points, by as much as is left;
    and what is coming to rest rises more slowly in the newer half of the points.

    Args:
        series: Step and value, oldest first.
        limit: In the unit of the values.
    """
    oldest = [value for _, value in series[: -(-len(series) // 3)]]
    for points in (series[-FAST_POINTS:], series[-POINTS:], series):
        line = _Line.through(points)
        if line is None or not line.rises_clearly or _is_jump(points, line):
            continue
        if 2 * line.level < limit + _mean(oldest):
            continue
        newer = _Line.through(points[len(points) // 2 :]) or line
        slope = min(line.slope, newer.slope)
        if slope > 0.0:
            return max(0.0, (limit - line.level) / slope)
    return None


class _Line(NamedTuple):
    """A least-squares line through steps and values."""

    slope: float  # per step
    error: float  # standard error of the slope
    level: float  # value of the line at the newest step
    freedom: int  # degrees of freedom

    @classmethod
    def through(cls, points: Sequence[tuple[int, float]]) -> _Line | None:
        """Fit the line; ``None`` through too few points."""
        n = len(points)
        mean_step = _mean([step for step, _ in points])
        mean = _mean([value for _, value in points])
        spread = sum((s - mean_step) ** 2 for s, _ in points)
        if n < MIN_POINTS or not spread:
            return None
        slope = sum((s - mean_step) * (v - mean) for s, v in points) / spread
        rest = sum((v - mean - slope * (s - mean_step)) ** 2 for s, v in points)
        error = math.sqrt(rest / (n - 2) / spread)
        return cls(slope, error, mean + slope * (points[-1][0] - mean_step), n - 2)

    @property
    def rises_clearly(self) -> bool:
        """Whether the slope is positive beyond what chance makes of a few points."""
        return self.slope > max(0.0, _clear_from(self.freedom) * self.error)


def _is_jump(points: Sequence[tuple[int, float]], line: _Line) -> bool:
    """Whether most of a rise happened between two neighbouring points: it goes no further."""
    rise = points[-1][1] - points[0][1]
    steepest = max(
        v - before - line.slope * (step - earlier)
        for (earlier, before), (step, v) in pairwise(points)
    )
    return steepest >= JUMP_SHARE * rise


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


def _clear_from(freedom: int) -> float:
    """Return how many standard errors are a trend, given the degrees of freedom.

    Within a tenth of Student's t at 1 in 10000: 71 for 2 of them, 22 for 3, 13 for 4, 5.7 for 10.
    """
    return CLEAR_TREND * (1.0 + 105.0 / freedom**3)
