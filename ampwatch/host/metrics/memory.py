"""Metrics of the memory that a training takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.host.metrics.metric import Metric
from ampwatch.host.metrics.scopes import NewestRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.host.metrics.metric import Reader
    from ampwatch.host.metrics.scopes import Table
    from ampwatch.wire.records import MemoryRecord, PlaceMemory

_MEMORY: NewestRecord[MemoryRecord] = NewestRecord(lambda rank: rank.memory)


def _of_each_place(read: Callable[[PlaceMemory], int]) -> Reader:
    """Return the reader of a number of bytes of each place, absent where it is not known."""

    def table(record: MemoryRecord) -> Table:
        # By place: a ring is another process's, which may name one twice.
        known = {place.place: read(place) for place in record.places}
        return [((place,), nbytes) for place, nbytes in known.items() if nbytes >= 0]

    return _MEMORY.by("memory", read=table)


TRAINING_MEMORY: tuple[Metric, ...] = (
    Metric(
        "ampwatch_training_memory_allocated_bytes",
        "gauge",
        "Memory in use by the training process at the end of an iteration: of its first device what PyTorch's allocator has handed out, of the host the resident set.",
        _of_each_place(lambda place: place.allocated),
        unit="bytes",
    ),
    Metric(
        "ampwatch_training_memory_peak_bytes",
        "gauge",
        "Most memory in use by the training process so far, as far as PyTorch and the system have counted; on a device torch.cuda.reset_peak_memory_stats() starts it again.",
        _of_each_place(lambda place: place.peak),
        unit="bytes",
    ),
    Metric(
        "ampwatch_training_memory_reserved_bytes",
        "gauge",
        "Memory of the first device of the training that PyTorch's allocator holds, in use or not.",
        _of_each_place(lambda place: place.reserved),
        unit="bytes",
    ),
    Metric(
        "ampwatch_training_memory_capacity_bytes",
        "gauge",
        "Memory that there is: of the device all of it, of the host what its container, or the machine, has.",
        _of_each_place(lambda place: place.limit),
        unit="bytes",
    ),
)
