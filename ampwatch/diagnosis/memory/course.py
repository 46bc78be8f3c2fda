"""The course of the memory in use, and whether it grows and goes on growing."""

from __future__ import annotations

from collections import deque
from itertools import combinations, pairwise
from statistics import median
from typing import NamedTuple

MAX_POINTS = 256
"""Points of a course: some 16 000 iterations, once they are as far apart as they come to be."""

PARTS = 6
"""Parts of the later half of a course, each of which has to be higher than the one before."""

MIN_POINTS = 12
"""Points in the later half, one in each part at least. The least of a part is what is held: what an
evaluation takes, and a batch that is longer than others, is given back."""

SMALLEST, LARGEST = 1 / 3, 3.0
"""Rise from one part to the next, as a multiple of the median one: caches and pools grow less and
less, and what was made once is one jump."""


class Point(NamedTuple):
    """Memory at the end of an iteration.

    Attributes:
        step: Index of the iteration.
        time_ns: Unix time. Unit: ns.
        allocated: What is in use. Unit: B.
        allocations: Live allocations; -1 where they are not counted.
    """

    step: int
    time_ns: int
    allocated: int
    allocations: int


class Growth(NamedTuple):
    """A steady growth of what is in use.

    Attributes:
        rate: Growth an iteration. Unit: B.
        allocations: Allocations that stay, an iteration; 1 where they are not counted.
        since: First iteration of the stretch that it was seen in.
        step: Last iteration of it.
        grown: Growth in that stretch. Unit: B.
        seconds: Duration of an iteration, on average. Unit: s.
    """

    rate: float
    allocations: float
    since: int
    step: int
    grown: int
    seconds: float


class Course:
    """Points of the memory in use, at growing distances."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=MAX_POINTS)

    @property
    def watched(self) -> int:
        """Iterations between the first point and the last one."""
        return self._points[-1].step - self._points[0].step if self._points else 0

    def add(self, point: Point) -> None:
        """Add the newest point."""
        self._points.append(point)

    def growth(self) -> Growth | None:
        """Return the growth of the later half of the course; ``None`` if it is not a steady one.

        Cost: 40 us; 1 us where no more is in use than in the middle of the course.
        """
        count = len(self._points)
        if count < 2 * MIN_POINTS:
            return None
        # As a rule nothing has grown. What was let go just now has, and shows at the next point.
        if self._points[-1].allocated <= self._points[count // 2].allocated:
            return None
        begin, end = self._points[0].step, self._points[-1].step
        later = [point for point in self._points if point.step >= (begin + end) / 2]
        parts = _divided(later)
        if len(later) < MIN_POINTS or not all(parts):
            return None
        floors = [min(point.allocated for point in part) for part in parts]
        rises = [after - before for before, after in pairwise(floors)]
        usual = median(rises)
        if usual <= 0 or min(rises) < SMALLEST * usual or max(rises) > LARGEST * usual:
            return None
        first, last = later[0], later[-1]
        steps = last.step - first.step
        counted = [min(point.allocations for point in part) for part in parts]
        allocations = 1.0
        if counted[0] >= 0:
            allocations = _slope(counted) * PARTS / steps
        return Growth(
            rate=_slope(floors) * PARTS / steps,
            allocations=allocations,
            since=first.step,
            step=last.step,
            grown=floors[-1] - floors[0],
            seconds=(last.time_ns - first.time_ns) / 1e9 / steps,
        )


def _divided(points: list[Point]) -> list[list[Point]]:
    """Return points in parts of as many iterations each."""
    begin, end = points[0].step, points[-1].step + 1
    parts: list[list[Point]] = [[] for _ in range(PARTS)]
    for point in points:
        parts[(point.step - begin) * PARTS // (end - begin)].append(point)
    return parts


def _slope(values: list[int]) -> float:
    """Return the slope of values at equal distances: the median of those of all pairs (Theil and Sen)."""
    numbered = list(enumerate(values))
    return median((b - a) / (j - i) for (i, a), (j, b) in combinations(numbered, 2))
