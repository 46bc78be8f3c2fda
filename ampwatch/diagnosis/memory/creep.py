"""Findings about memory that grows in each iteration."""

from __future__ import annotations

from collections import deque
from itertools import combinations, pairwise
from statistics import median
from typing import NamedTuple

from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.memory import HeldParts, Holding, Memory, MemoryPlace, MemoryRead
from ampwatch.diagnosis.memory.kinds import MEMORY_CREEP

MAX_POINTS = 256
"""Points of a history: some 16 000 iterations, once they are as far apart as they come to be."""

PARTS = 6
"""Parts of the later half of a history, each of which has to be higher than the one before."""

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


class MemoryHistory:
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
        """Return the growth of the later half of the history; ``None`` if it is not a steady one.

        Cost: 40 us; 1 us where no more is in use than in the middle of the history.
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


LONG = 1024
"""Iterations of which the same has to be kept: objects that refer to one another in a circle are freed
within as many, after some 700 that are new (``gc.get_threshold()``), and who keeps the losses of a
window of training for its mean has fewer."""

MIN_HELD = 16
"""Iterations at least that were looked at in this time."""

MIN_GROWN = 2**20
"""Growth that is more than noise, in the stretch that is judged. Unit: B."""

MIN_ALLOCATIONS = 0.5
"""Allocations that stay, an iteration. Sequences or batches that grow longer take more memory in as
many allocations."""


class _Rise(NamedTuple):
    """Memory that grows."""

    memory: Memory  # as it is now
    growth: Growth  # how it grows
    watched: int  # iterations that it has been watched for

    @property
    def steps_left(self) -> float:
        """Iterations after which none is left at this rate; infinite if it is not known how much there is."""
        left = self.memory.limit - self.memory.allocated
        return max(left, 0) / self.growth.rate if self.memory.limit else float("inf")

    @property
    def ends_soon(self) -> bool:
        """Whether none is left before it has been watched for as long again."""
        return self.steps_left <= self.watched


class MemoryCreep(Detector):
    """Reports memory that grows steadily because of graphs that are kept, or will soon be used up.

    Growth alone is no finding: a replay buffer grows as a leak does, until it is full. It is one once
    as much is left as it has grown by, or if graphs of all earlier iterations are seen to be kept.

    Args:
        shared: What the detectors have in common.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._histories = {place: MemoryHistory() for place in MemoryPlace}

    @takes(MemoryRead, is_aside=True)
    def observe(self, read: MemoryRead) -> None:
        """Take in the memory at the end of an iteration."""
        rises = []
        for memory in read.places:
            history = self._histories[memory.place]
            history.add(Point(read.step, read.time_ns, memory.allocated, memory.allocations))
            growth = history.growth()
            if growth is not None and growth.allocations >= MIN_ALLOCATIONS:
                rises.append(_Rise(memory, growth, history.watched))
        kept = _held_long(read)
        for rise in sorted(rises, key=lambda rise: rise.steps_left):
            if rise.growth.grown >= MIN_GROWN and (kept is not None or rise.ends_soon):
                self._report(rise, read.kept if kept is None else kept)
                return

    def _report(self, rise: _Rise, kept: HeldParts | None) -> None:
        memory, growth = rise.memory, rise.growth
        evidence = {
            "bytes_per_iteration": growth.rate,
            "grown_bytes": float(growth.grown),
            "grown_first_step": float(growth.since),
            "allocated_bytes": float(memory.allocated),
        }
        if kept is not None:
            evidence["iterations_looked_at"] = float(kept.iterations)
            evidence["kept_first_step"] = float(kept.since)
        if memory.limit:
            evidence["limit_bytes"] = float(memory.limit)
            evidence["iterations_left"] = rise.steps_left
            evidence["hours_left"] = rise.steps_left * growth.seconds / 3600
        is_graph = kept is not None and kept.holding is not Holding.PART
        self._book.report(
            MEMORY_CREEP,
            "loss" if is_graph else "",
            growth.step,
            is_once=True,
            summary=f"{_how_much(rise)}. {_until(rise)}{_holder(kept)}",
            first_step=growth.since,
            phase="forward",
            source="" if kept is None else kept.source,
            evidence=evidence,
        )


def _held_long(read: MemoryRead) -> HeldParts | None:
    """Return what is kept of iterations, if it is of too many to be meant."""
    kept = read.kept
    if kept is None or kept.iterations < MIN_HELD or read.step - kept.since < LONG:
        return None
    return kept


def _how_much(rise: _Rise) -> str:
    growth = rise.growth
    place = "of the device" if rise.memory.place is MemoryPlace.DEVICE else "of the host"
    return (
        f"Memory {place} in use grows by {_mib(growth.rate)} in each iteration: by"
        f" {_mib(growth.grown)} from step {growth.since} to step {growth.step}"
    )


def _until(rise: _Rise) -> str:
    if not rise.memory.limit:
        return ""
    left = rise.steps_left
    hours = left * rise.growth.seconds / 3600
    return (
        f"At this rate the {rise.memory.limit / 2**30:.4g} GiB that there are will be used up in"
        f" {left:.0f} iterations, {hours:.2g} hours. "
    )


def _holder(kept: HeldParts | None) -> str:
    if kept is None:
        return "What holds it is not known: no graph of an earlier iteration is seen to be kept"
    each = f"each of the {kept.iterations} iterations checked since step {kept.since}"
    if kept.holding is Holding.LOSS:
        return f"The losses are kept, with their graphs: the loss of {each} is still there"
    if kept.holding is Holding.SUM:
        return (
            "The graphs of the losses are kept by something that is computed of them, as a running"
            f" total is: that of {each} is still there, and the loss itself is not"
        )
    return (
        "Parts of the graphs are kept, by outputs or a state that one iteration hands to the next:"
        f" that of {each} is still there, and the loss is not"
    )


def _mib(nbytes: float) -> str:
    return f"{float(f'{nbytes / 2**20:.3g}'):g} MiB"
