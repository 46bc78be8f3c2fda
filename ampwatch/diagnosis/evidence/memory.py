"""Memory that a training takes, and what of earlier iterations is still there. No torch."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class MemoryPlace(str, Enum):
    """Where memory is."""

    HOST = "host"
    DEVICE = "device"


class Memory(NamedTuple):
    """Memory of one place at the end of an iteration.

    Attributes:
        place: Where.
        allocated: What is in use: on a host the resident set of the process. Unit: B.
        peak: The most that was in use so far. Unit: B.
        reserved: What the allocator holds, in use or not; -1 where nobody says. Unit: B.
        limit: All that there is, 0 where that is not known. Unit: B.
        allocations: Live allocations; -1 where they are not counted.
    """

    place: MemoryPlace
    allocated: int
    peak: int
    reserved: int = -1
    limit: int = 0
    allocations: int = -1


class Holding(Enum):
    """What of an iteration is kept after it."""

    LOSS = "loss"
    """The loss itself, with its graph."""

    SUM = "sum"
    """The graph of the loss, by something that was computed of it."""

    PART = "part"
    """A part of the graph, by an output or something else that the loss was computed of."""


class HeldParts(NamedTuple):
    """A part of each of several iterations that is still there now.

    Attributes:
        holding: What.
        iterations: Iterations that were looked at.
        since: The first of them.
        source: ``file:line`` that has called backward; empty if unknown.
    """

    holding: Holding
    iterations: int
    since: int
    source: str = ""


class MemoryRead(NamedTuple):
    """Memory at the end of an iteration.

    Attributes:
        step: Index of the iteration.
        time_ns: Unix time. Unit: ns.
        places: The memory of each place that is known.
        kept: What is kept of earlier iterations; ``None`` if nothing is seen to be.
    """

    step: int
    time_ns: int
    places: tuple[Memory, ...]
    kept: HeldParts | None = None
