"""Findings about attention logits that grow towards where a softmax saturates."""

from __future__ import annotations

import math
from collections import deque
from itertools import combinations, pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.ops import LogitsRead
from ampwatch.diagnosis.forward.kinds import LOGIT_GROWTH
from ampwatch.numerics.formats import FORMATS
from ampwatch.wire.records import in_words

if TYPE_CHECKING:
    from collections.abc import Sequence


SATURATED = -math.log(FORMATS["float32"].flush_at)
"""Distance from which the softmax gives a key nothing, 103.97: the exponential of its distance to the
largest logit is zero in float32, in which PyTorch sums, whatever the dtype of its operand."""

LOUD = SATURATED / 2
"""Largest logit from which growth is a finding."""

LOUD_BOUND = SATURATED
"""Bound of the largest logit from which its growth is a finding: how far below it any logit is was not seen."""

WATCHED = SATURATED / 8
"""Largest logit from which ops are observed often, and from which growth after a plateau is a finding."""

INTERVALS = ((WATCHED / LOUD, 8), (WATCHED / LOUD / 2, 32), (0.0, 64))
"""Iterations of which one is looked at, by the share of what is a finding that a largest logit has risen to."""

MIN_RISEN = 0.5
"""Growth that counts, as a power of two: large logits that stay as they are cost no more than small ones."""

APART = 8
"""Iterations between two measurements that count: where each is observed, neighbours say the same."""

MIN_POINTS = 4
"""Measurements without which nothing is reported."""

NEWEST = 3
"""Measurements of which the median is what logits are now: one batch is no trend."""

FITTED = 8
"""Newest measurements that the trend is fitted to."""

POINTS = 64
"""Measurements of a module that are remembered."""

AHEAD = 500
"""Iterations within which the trend has to reach ``SATURATED``."""

MIN_GROWN = 1.0
"""Growth since the least of what is remembered, as a power of two."""

PLATEAU = 12
"""Measurements before the newest that say where logits had come to rest, and how far they stray there."""

RESUMED = 5
"""Newest measurements that the trend after a plateau is fitted to."""

MIN_RESUMED = 0.4
"""Growth from a plateau, as a power of two."""

BEYOND = 1.5
"""How far above a plateau they have to be, as a multiple of how far any measurement of it was."""

NOISE = 4.0
"""How far above a plateau they have to be, as a multiple of the standard deviation of one measurement."""

MAD = 1.4826
"""Standard deviation of a normal distribution, as a multiple of its median absolute deviation."""

SOON = 200
"""Iterations within which the trend has to reach ``SATURATED`` after a plateau."""


class _Point(NamedTuple):
    """The largest logit of one iteration, and what bounds it up to a factor, as powers of two."""

    step: int
    log2: float
    reach: float


class _Trend(NamedTuple):
    """Logits that grow."""

    since: int  # the iteration after which they have grown
    before: float  # what the largest was then
    now: float  # what it is, the median of the newest
    slope: float  # powers of two an iteration

    @property
    def doubles_in(self) -> float:
        """Iterations in which they double."""
        return 1 / self.slope

    @property
    def steps_left(self) -> float:
        """Iterations until they saturate a softmax; 0 if they do."""
        return max(math.log2(SATURATED / self.now), 0.0) / self.slope


class LogitGrowth(Detector):
    """Follows the largest attention logit of each module."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._series: dict[tuple[str, bool], deque[_Point]] = {}
        self._intervals: dict[tuple[str, bool], int] = {}
        self._reported_at = -1
        self._reported: _Trend | None = None

    @property
    def probe_every(self) -> int:
        """Iterations of which one is to be looked at for the logits; 0 before any were seen."""
        return min(self._intervals.values(), default=0)

    @takes(LogitsRead, is_aside=True)
    def observe(self, read: LogitsRead) -> None:
        """Take in the largest logit of a module."""
        if not 0 < read.largest < math.inf:
            return
        # A bound and an exact number are not compared: they differ by a factor of their own.
        key = read.where, read.is_bound
        series = self._series.setdefault(key, deque(maxlen=POINTS))
        if series and read.step - series[-1].step < APART:
            return
        reach = read.reach if 0 < read.reach < math.inf else read.largest
        series.append(_Point(read.step, math.log2(read.largest), math.log2(reach)))
        has_risen = series[-1].log2 - min(point.log2 for point in series) >= MIN_RISEN
        loud = LOUD_BOUND if read.is_bound else LOUD
        risen = read.largest / loud if has_risen else 0.0
        self._intervals[key] = next(steps for level, steps in INTERVALS if risen >= level)
        trend = _trend(list(series), loud, is_bound=read.is_bound)
        if trend is not None:
            self._say(read, trend)

    def _say(self, read: LogitsRead, trend: _Trend) -> None:
        if self._reported is None:
            self._reported_at, self._reported = read.step, trend
            self._report(read, trend)
            return
        made = self._book.of_kind(LOGIT_GROWTH.slug)
        if made and made[-1].where == read.where and read.step > self._reported_at:
            self._reported_at = read.step
            # Where it began is what was reported first: later a plateau before lies within the growth.
            began = trend._replace(since=self._reported.since, before=self._reported.before)
            self._report(read, began)

    def _report(self, read: LogitsRead, trend: _Trend) -> None:
        spacing = _spacing(read.dtype, trend.now)
        most = "at most " if read.is_bound else ""
        ends = (
            f"At this rate it reaches {SATURATED:.0f} in {trend.steps_left:.0f} iterations, from where"
            if trend.steps_left
            else f"From {SATURATED:.0f} on"
        )
        self._book.report(
            LOGIT_GROWTH,
            read.where,
            read.step,
            summary=(
                f"The largest attention logit in {in_words(read.where)} grows: from {most}"
                f"{trend.before:.3g} at step {trend.since} to {most}{trend.now:.3g} at step {read.step},"
                f" and doubles in {trend.doubles_in:.0f} iterations. {ends} a softmax gives all weight to"
                f" one key and none to the others, and its gradient vanishes; neighbouring numbers of"
                f" {read.dtype} are {spacing:.2g} apart there now"
            ),
            first_step=trend.since,
            op=read.op,
            phase="forward",
            dtype=read.dtype,
            source=read.source,
            evidence={
                "largest": trend.now,
                "largest_before": trend.before,
                "doubles_in_steps": trend.doubles_in,
                "saturates_at": SATURATED,
                "steps_left": trend.steps_left,
                "spacing": spacing,
                "is_bound": float(read.is_bound),
            },
        )


def _trend(points: Sequence[_Point], loud: float, *, is_bound: bool) -> _Trend | None:
    """Return how logits grow; ``None`` if they do not, or not towards saturation."""
    if len(points) < MIN_POINTS:
        return None
    # A bound that leaves a plateau far below is no sign of where the logits are.
    after = None if is_bound else _after_a_plateau(points)
    return after or _steady(points, loud)


def _after_a_plateau(points: Sequence[_Point]) -> _Trend | None:
    """Return how logits grow that had come to rest.

    They are reported at a lower level than others: the growth with which all attention begins levels off,
    and has no plateau before. Queries and keys grow first, and their norms stray less than the logits, so these
    are what has to leave the plateau, by more than any batch adds. The newest measurements alone say where
    it leads: growth that begins anew doubles in ever fewer steps.
    """
    plateau, newest = points[-NEWEST - PLATEAU : -NEWEST], points[-NEWEST:]
    now = median(point.log2 for point in newest)
    if len(plateau) < PLATEAU or 2**now < WATCHED:
        return None
    level = median(point.reach for point in plateau)
    strays = max(point.reach for point in plateau) - level
    risen = median(point.reach for point in newest) - level
    slope = _slope([(point.step, point.reach) for point in points[-RESUMED:]])
    if risen < max(MIN_RESUMED, BEYOND * strays, NOISE * _noise(points)) or slope <= 0:
        return None
    if risen - _jump([point.reach for point in points[-NEWEST - 1 :]]) < MIN_RESUMED / 2:
        return None
    before = median(point.log2 for point in plateau)
    trend = _Trend(plateau[-1].step, 2**before, 2**now, slope)
    return trend if trend.steps_left <= SOON else None


def _steady(points: Sequence[_Point], loud: float) -> _Trend | None:
    """Return how logits grow that have grown all along."""
    now = median(point.log2 for point in points[-NEWEST:])
    # Medians of neighbours, so that a batch with small logits is no beginning of growth.
    smooth = [
        (median(p.log2 for p in points[i : i + NEWEST]), points[i + NEWEST // 2].step)
        for i in range(len(points) - NEWEST + 1)
    ]
    least = min(log2 for log2, _ in smooth)
    since = max(step for log2, step in smooth if log2 <= least)
    slope = _slope([(point.step, point.log2) for point in points[-FITTED:]])
    grown = now - least
    jump = _jump([point.log2 for point in points])
    if 2**now < loud or grown < MIN_GROWN or grown - jump < MIN_RISEN or slope <= 0:
        return None
    trend = _Trend(since, 2**least, 2**now, slope)
    return trend if trend.steps_left <= AHEAD else None


def _jump(values: Sequence[float]) -> float:
    """Return the largest rise from one measurement to the next: other data make one, and it is no trend."""
    return max(new - old for old, new in pairwise(values))


def _noise(points: Sequence[_Point]) -> float:
    """Return the standard deviation of a measurement, by the differences of neighbours: growth hardly shows in them."""
    steps = [abs(new.reach - old.reach) for old, new in pairwise(points)]
    return MAD * median(steps) / math.sqrt(2)


def _slope(points: Sequence[tuple[int, float]]) -> float:
    """Return the slope of a line through points: the median of those of all pairs (Theil and Sen)."""
    return median((y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in combinations(points, 2))


def _spacing(dtype: str, value: float) -> float:
    """Return the distance of neighbouring numbers of a format at a value."""
    return float(2.0 ** (math.floor(math.log2(value)) - FORMATS[dtype].mantissa_bits))
