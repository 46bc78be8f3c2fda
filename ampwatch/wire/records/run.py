"""Records of a run as a whole: who it is, its facts and weights, how it ended, what has failed."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from ampwatch.wire.records.fields import Count, CountOrUnknown, Label, Name


class RunState(str, Enum):
    """State of a rank, as the daemon sees it."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STALE = "stale"


class RunIdentity(Struct, frozen=True):
    """Identity of the writer of a ring; fixed for the life of the file.

    Attributes:
        run: The user's name of the run, stable between restarts.
        rank: Global rank in the process group, 0 without one.
        local_rank: Rank on this host.
        world_size: Number of ranks in the process group, 1 without one.
        pid: Process id of the writer, in its own pid namespace.
        host: Host name of the writer.
        started_ns: Unix time of ``ampwatch.monitor()``. Unit: ns.
        version: Version of ampwatch that writes.
    """

    run: Label
    rank: Count
    local_rank: Count
    world_size: Count
    pid: Count
    host: Label
    started_ns: Count
    version: Label


class FactsRecord(Struct, frozen=True):
    """Facts that do not change from step to step; written at the start and on change.

    Attributes:
        facts: Name to value, both short strings. The names are those of
            ``sensors.run_facts`` and become labels of ``ampwatch_run_info``.
    """

    facts: dict[str, str]


class EndRecord(Struct, frozen=True):
    """The last record of a run that could still write one.

    Attributes:
        state: ``FINISHED`` or ``FAILED``.
        reason: Why it ended, in words: empty, or the exception that ended the loop.
        time_ns: Unix time. Unit: ns.
    """

    state: RunState
    reason: str
    time_ns: Count


MEMORY_PARTS = ("ring", "report", "transfer", "updates", "averages", "replay")
"""Parts of the memory that watching holds: the ring file, the evidence for reports, values on their
way to the host, elements of weights that updates are compared with, those of averages, and inputs
of the model that replays still need."""

MEMORY_PLACES = ("host", "device")
"""Where it is: in host memory, pinned or not, or on devices."""

WITHOUT_C = "without_c"
"""Fact of a run that is watched without the C part of ampwatch."""

MEMORY_LIMIT = "memory_limit"
"""Fact with what may be held in each place. Unit: B."""


def memory_fact(part: str, place: str) -> str:
    """Return the name of the fact with what a part holds in a place. Unit: B."""
    return f"memory_{place}_{part}"


class PlaceMemory(NamedTuple):
    """Memory of a training in one place.

    Attributes:
        place: One of ``MEMORY_PLACES``: the host, or the first device of the training.
        allocated: What is in use: on the host the resident set of the process. Unit: B.
        peak: The most that was in use so far. Unit: B.
        reserved: What the allocator holds, in use or not; -1 where nobody says. Unit: B.
        limit: All that there is; -1 where that is not known. Unit: B.
    """

    place: Annotated[str, Meta(pattern=f"^({'|'.join(MEMORY_PLACES)})$")]
    allocated: Count
    peak: Count
    reserved: CountOrUnknown
    limit: CountOrUnknown


class MemoryRecord(Struct, frozen=True):
    """Memory that a training takes; the newest holds.

    Attributes:
        time_ns: Unix time. Unit: ns.
        places: Each place that is known, once.
    """

    time_ns: Count
    places: tuple[PlaceMemory, ...]


class ChecksumRecord(Struct, frozen=True):
    """Checksums of a part of the weights in two iterations that follow one another.

    Attributes:
        step: Index of the first of the two iterations.
        part: Which part of the weights, from 0; the parts take turns.
        checksum: Digest of that index and of the weights at the end of both iterations, of less than
            2^48: equal on two ranks that train in lockstep, if the weights have moved.
        layout: Digest of names, shapes and dtypes of all weights.
        parts: Number of parts.
        places: First and last parameter of each group of weights that are summed together.
        first: Checksum of each group at the end of the first iteration.
        then: Checksum of each group at the end of the next one.
    """

    step: Count
    part: Count
    checksum: Count
    layout: Count
    parts: Count
    places: tuple[tuple[Name, Name], ...]
    first: tuple[Count, ...]
    then: tuple[Count, ...]


class CulpritRecord(Struct, frozen=True):
    """Parameter whose gradient was not finite in skipped steps, where other ranks do not have it.

    Attributes:
        since: Index of the first of the steps that were skipped in a row; the same in each rank.
        parameter: Name of the parameter.
    """

    since: Count
    parameter: Name


class SensorFailureRecord(Struct, frozen=True):
    """Exceptions of one sensor that were kept from training; the newest of a sensor holds.

    Attributes:
        sensor: Short name of the sensor, the same from release to release; becomes a label.
        errors: Exceptions of this sensor so far.
        step: Index of the iteration of the newest one.
        message: The newest one, as ``Type: text``.
    """

    sensor: Label
    errors: Count
    step: Count
    message: str
