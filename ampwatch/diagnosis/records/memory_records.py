"""Records of the memory that a training takes."""

from __future__ import annotations

from ampwatch.diagnosis.detector import Detector, Shared, takes
from ampwatch.diagnosis.evidence.memory import MemoryRead
from ampwatch.wire.records import MemoryRecord, PlaceMemory

MIN_APART_NS = 10**9
"""Time from one record to the next at least. Unit: ns."""


class MemoryRecorder(Detector):
    """Passes memory on as records, one a second at most.

    Attributes:
        newest: The newest memory, recorded or not; ``None`` before the first.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._put = shared.put
        self._recorded_ns = 0
        self.newest: MemoryRecord | None = None

    @takes(MemoryRead, is_aside=True)
    def record(self, read: MemoryRead) -> None:
        """Take in the memory at the end of an iteration."""
        places = [
            PlaceMemory(m.place.value, m.allocated, m.peak, m.reserved, m.limit or -1)
            for m in read.places
        ]
        self.newest = MemoryRecord(read.time_ns, tuple(places))
        if read.time_ns - self._recorded_ns >= MIN_APART_NS:
            self._recorded_ns = read.time_ns
            self._put(self.newest)

    def flush(self) -> None:
        """Record the newest memory, if it has not been yet."""
        newest = self.newest
        if newest is not None and newest.time_ns != self._recorded_ns:
            self._recorded_ns = newest.time_ns
            self._put(newest)
