"""Findings about memory that grows in each iteration."""

from __future__ import annotations

from typing import NamedTuple

from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.memory import Holding, Kept, Memory, MemoryPlace, MemoryRead
from ampwatch.diagnosis.memory.course import Course, Growth, Point
from ampwatch.diagnosis.memory.kinds import MEMORY_CREEP

LONG = 1024
"""Iterations of which the same has to be kept: objects that refer to one another in a circle are freed
within as many, after some 700 that are new (``gc.get_threshold()``), and who keeps the losses of a
window of training for its mean has fewer."""

MIN_KEPT = 16
"""Iterations at least that were looked at in this time."""

MIN_GROWN = 2**20
"""Growth that is more than noise, in the stretch that is judged. Unit: B."""

MIN_ALLOCATIONS = 0.5
"""Allocations that stay, an iteration. Sequences or batches that grow longer take more memory in as
many allocations."""


class _Rise(NamedTuple):
    """Memory that grows.

    Attributes:
        memory: As it is now.
        growth: How it grows.
        watched: Iterations that it has been watched for.
    """

    memory: Memory
    growth: Growth
    watched: int

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
        self._courses = {place: Course() for place in MemoryPlace}

    @takes(MemoryRead, is_aside=True)
    def observe(self, read: MemoryRead) -> None:
        """Take in the memory at the end of an iteration."""
        rises = []
        for memory in read.places:
            course = self._courses[memory.place]
            course.add(Point(read.step, read.time_ns, memory.allocated, memory.allocations))
            growth = course.growth()
            if growth is not None and growth.allocations >= MIN_ALLOCATIONS:
                rises.append(_Rise(memory, growth, course.watched))
        kept = _kept_long(read)
        for rise in sorted(rises, key=lambda rise: rise.steps_left):
            if rise.growth.grown >= MIN_GROWN and (kept is not None or rise.ends_soon):
                self._report(rise, read.kept if kept is None else kept)
                return

    def _report(self, rise: _Rise, kept: Kept | None) -> None:
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


def _kept_long(read: MemoryRead) -> Kept | None:
    """Return what is kept of iterations, if it is of too many to be meant."""
    kept = read.kept
    if kept is None or kept.iterations < MIN_KEPT or read.step - kept.since < LONG:
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


def _holder(kept: Kept | None) -> str:
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
    """Write a number of bytes in MiB."""
    return f"{float(f'{nbytes / 2**20:.3g}'):g} MiB"
