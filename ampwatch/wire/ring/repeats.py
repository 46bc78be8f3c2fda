"""Repeats of lasting messages, so that a reader that comes late still finds the newest of each.

Steps and ranges pass by, but facts, findings and the totals of an optimizer, of sampling,
of the op census, of profiler windows and of failures of a sensor hold until they change,
perhaps for the rest of the run. The writer repeats each one before the ring wraps over it. A record may therefore be read more than once; the
newest of a key holds.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from ampwatch.wire.records import (
    CensusRecord,
    FactsRecord,
    FindingRecord,
    OptimizerRecord,
    SamplingRecord,
    SensorFailureRecord,
    WindowRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ampwatch.wire.records import Record
    from ampwatch.wire.ring.layout import RecordKind

_MAX_SLOTS = 2048
"""Bound of the remembered messages: half a megabyte, more findings than anybody reads."""


class Message(NamedTuple):
    """An encoded record."""

    kind: RecordKind
    payload: bytes
    chunks: int


class _Remembered(NamedTuple):
    message: Message
    written_at: int


class Repeats:
    """The lasting messages of one ring, the one written longest ago first.

    They take an eighth of the ring at most, and are due half a ring after they were
    written. With at least as many slots repeated as newly written while any is due
    (the writer's part), none is older than 7/8 of a ring: 1/2 until due, 1/8 for the
    others before it, 1/8 for what is newly written meanwhile, 1/8 for one message more.

    Attributes:
        due_at: Sequence before which nothing is due.

    Cost: constant for each call, memory bounded by an eighth of the ring.
    """

    def __init__(self, slots: int) -> None:
        self._due_after = slots // 2
        self._room = min(slots // 8, _MAX_SLOTS)
        self._newest: OrderedDict[Hashable, _Remembered] = OrderedDict()
        self.due_at = sys.maxsize

    def remember(self, record: Record, message: Message, written_at: int) -> None:
        """Keep ``message`` if it lasts; when there is no room the earlier ones stay."""
        key_of = _KEYS.get(type(record))
        if key_of is None:
            return
        key = key_of(record)
        if before := self._newest.pop(key, None):
            self._room += before.message.chunks
        # Without room the earlier ones stay: root causes come first, and pushing one out would
        # only make the next one not fit.
        if message.chunks <= self._room:
            self._room -= message.chunks
            if not self._newest:
                self.due_at = written_at + self._due_after
            self._newest[key] = _Remembered(message, written_at)

    def due(self, head: int) -> Message | None:
        """Return the message that is to be repeated at sequence ``head``, if one is.

        It counts as written there: the next call returns another one.
        """
        if not self._newest:
            self.due_at = sys.maxsize
            return None
        key, oldest = next(iter(self._newest.items()))
        self.due_at = oldest.written_at + self._due_after
        if head < self.due_at:
            return None
        # At the end again, so that the first is always the one written longest ago.
        self._newest[key] = _Remembered(oldest.message, head)
        self._newest.move_to_end(key)
        return oldest.message


_KEYS: dict[type[Any], Callable[[Any], Hashable]] = {
    OptimizerRecord: attrgetter("index"),
    FindingRecord: attrgetter("finding.key"),
    SensorFailureRecord: lambda record: (SensorFailureRecord, record.sensor),
    FactsRecord: type,
    SamplingRecord: type,
    CensusRecord: type,
    WindowRecord: type,
}
"""Key by which a newer message replaces a lasting one. Of the last four the newest holds, whatever
it says."""
