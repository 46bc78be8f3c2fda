"""The reading end of the ring, in the daemon or wherever a ring is read.

Reads with ``os.pread`` and never maps: a file that somebody truncates would kill the
reader with SIGBUS. Whatever the file holds, after it was opened nothing raises.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from ampwatch.errors import RingError
from ampwatch.wire.ring import layout, lock
from ampwatch.wire.ring.encoding import decode, decode_identity

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ampwatch.wire.records import Record

_SLOTS_PER_READ = 1024
_NO_DESCRIPTOR = -1


class RingReader:
    """Reads one ring, from the oldest record that is still there when it is opened.

    Not for several threads at once. A record may come more than once
    (``repeats.py``); the newest of its key holds.

    Attributes:
        path: The ring file.
        identity: Who writes it.
        inode: Inode of the file that was opened; another file may get its name.
        uid: User who owns the file, whatever is in it.
        joined_late: The writer had lapped the ring before it was opened. What was
            overwritten by then nobody here has missed: totals in the records are cumulative.
        lost: Slots so far that were overwritten or unreadable before they were read. With
            the slots of the records returned they add up to those published, for one
            that joined late to those since the first whole message it found.
        dropped: Records the writer could not write, as of the last ``poll``.
        writer_pid: The writer's pid in the reader's own pid namespace, as of the last
            ``writer_alive``; 0 if it cannot be named.

    Args:
        path: The ring file.
        kinds: The kinds of records that are wanted; all if none is given. Slots of others are neither
            checked nor counted.

    Raises:
        RingError: If ``path`` is not a whole ring of this layout.
    """

    def __init__(self, path: Path, *kinds: layout.RecordKind) -> None:
        self.path = path
        self._kinds = frozenset(kinds)
        self.lost = 0
        self.dropped = 0
        self.writer_pid = 0
        self._parts: list[layout.Slot] = []
        try:
            # O_NONBLOCK: a FIFO of that name must not stop the daemon.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            self._descriptor = os.open(path, flags)
        except (OSError, ValueError) as error:
            msg = f"cannot open ring {str(path)!r}: {error}"
            raise RingError(msg) from error
        try:
            self._understand()
        except (OSError, ValueError) as error:
            msg = f"cannot read ring {str(path)!r}: {error}"
            refusal = RingError(msg)
            if isinstance(error, layout.OtherLayoutError):
                # The lock is where it was in every release.
                with suppress(OSError):
                    refusal.writer_lives = lock.holder(self._descriptor) is not None
            os.close(self._descriptor)
            raise refusal from error
        self._next = max(0, self._published() - self._slots)
        self.joined_late = self._next > 0
        self._joining = self.joined_late

    def poll(self, most: int | None = None) -> list[Record]:
        """Return the records since the last call, in order; none if there are none.

        Args:
            most: Slots that are read, the newest ones; others count as lost. All if not given.

        Cost: the slots that are new, one ring of them at most, 256 KiB at a time.
        """
        # Read once: a writer that goes on meanwhile must not keep this loop from ending.
        head = self._published()
        self._skip_to(head - (self._slots if most is None else min(most, self._slots)))
        records = []
        while self._next < head:
            for slot in self._read_slots(head):
                record = self._join(slot)
                if record is not None:
                    records.append(record)
        return records

    def writer_alive(self) -> bool:
        """Return whether the writer lives and has not closed the ring: the kernel's word.

        Ask before ``poll``: what a writer that is gone has written is then all read.
        Where the kernel cannot say, the answer is yes; a hung writer shows by its silence.
        """
        _, _, state = self._counters()
        self.writer_pid = 0
        if state == layout.CLOSED or self._descriptor == _NO_DESCRIPTOR:
            return False
        try:
            pid = lock.holder(self._descriptor)
        except OSError:
            return True
        self.writer_pid = pid or 0
        return pid is not None

    def close(self) -> None:
        """Let go of the file; again: nothing.

        In the writer's own process the descriptor stays open as long as the writer
        does: closing it would take the writer's lock away (``lock.py``).
        """
        descriptor, self._descriptor = self._descriptor, _NO_DESCRIPTOR
        if descriptor == _NO_DESCRIPTOR:
            return
        try:
            status = os.fstat(descriptor)
        except OSError:  # the program has closed it, with all that it has not opened
            return
        if (status.st_dev, status.st_ino) != self._file:
            return  # another file of the program's has the number by now
        # By pid and not by object: any descriptor of this file in this process has the trap.
        with suppress(OSError):
            if lock.holder(descriptor) == os.getpid():
                return
        os.close(descriptor)

    def _understand(self) -> None:
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            msg = f"expected a regular file, got {stat.filemode(status.st_mode)}; remove it"
            raise ValueError(msg)
        page = os.pread(self._descriptor, layout.HEADER_SIZE, 0)
        self._slots, identity = layout.unpack_header(page, status.st_size)
        self.identity = decode_identity(identity)
        self.inode = status.st_ino
        self._file = status.st_dev, status.st_ino
        self.uid = status.st_uid

    def _published(self) -> int:
        """Return the head, refreshing ``dropped``."""
        # The smaller of two readings: never ahead of the writer, even if one of the two
        # loads caught a store half-way. Running ahead would be final, staying behind is not.
        counters = zip(self._counters(), self._counters(), strict=True)
        head, dropped, _ = (min(pair) for pair in counters)
        self.dropped = max(self.dropped, dropped)
        return head

    def _counters(self) -> tuple[int, int, int]:
        """Return head, dropped and state; zeros if the file was cut before them."""
        data = self._pread(layout.COUNTERS.size, layout.COUNTERS_OFFSET)
        if len(data) < layout.COUNTERS.size:
            return 0, 0, 0
        head, dropped, state = layout.COUNTERS.unpack(data)
        return head, dropped, state

    def _skip_to(self, oldest: int) -> None:
        """Give up what the writer has overwritten since the last poll."""
        if oldest > self._next:
            self.lost += oldest - self._next + len(self._parts)
            self._parts = []
            self._next = oldest

    def _read_slots(self, head: int) -> list[layout.Slot | None]:
        """Read the next slots up to ``head``, without a wrap; ``None`` for one that is lost."""
        place = self._next % self._slots
        count = min(head - self._next, self._slots - place, _SLOTS_PER_READ)
        size = layout.SLOT_SIZE
        # The writer may overwrite some of them now. Their sequence and CRC show that, so that
        # they count as lost; nothing has to be read twice.
        data = self._pread(count * size, layout.HEADER_SIZE + place * size)
        places: Iterable[int] = range(count)
        if self._kinds:
            kinds = data[layout.KIND :: size]
            places = [i for i, kind in enumerate(kinds) if kind in self._kinds]
        slots = [
            layout.unpack_slot(data[i * size : (i + 1) * size], self._next + i) for i in places
        ]
        self._next += count
        return slots

    def _join(self, slot: layout.Slot | None) -> Record | None:
        """Add a slot to the message it belongs to; return the record when it is whole."""
        if self._joining and (slot is None or slot.chunk > 0):
            return None  # the rest of what was overwritten before we came
        self._joining = False
        if slot is None or not self._continues(slot):
            self.lost += len(self._parts)
            self._parts = []
        if slot is None or slot.chunk != len(self._parts):
            self.lost += 1
            return None
        self._parts.append(slot)
        if len(self._parts) < slot.chunks:
            return None
        parts, self._parts = self._parts, []
        try:
            return decode(slot.kind, b"".join(part.payload for part in parts))
        except ValueError:
            self.lost += len(parts)
            return None

    def _continues(self, slot: layout.Slot) -> bool:
        """Return whether ``slot`` is the next one of the message that has begun, if one has."""
        if not self._parts:
            return True
        first = self._parts[0]
        expected = (first.kind, len(self._parts), first.chunks)
        return (slot.kind, slot.chunk, slot.chunks) == expected

    def _pread(self, size: int, offset: int) -> bytes:
        try:
            return os.pread(self._descriptor, size, offset)
        except OSError:  # closed, or the file system is gone
            return b""
