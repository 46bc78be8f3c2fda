"""The writing end of the ring, in the training process.

``put`` stores through a memory map: plain stores, no system call in which the
interpreter lock would be handed over in the middle of a training step, as
``os.pwrite`` does.
"""

from __future__ import annotations

import mmap
import os
import re
import secrets
import struct
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from ampwatch.errors import RingError
from ampwatch.guard import OneAtATime
from ampwatch.runtime import RING_SUFFIX, private_directory
from ampwatch.wire.ring import layout, lock
from ampwatch.wire.ring.encoding import encode, encode_identity
from ampwatch.wire.ring.repeats import Message, Repeats

if TYPE_CHECKING:
    from pathlib import Path

    from ampwatch.wire.records import EndRecord, Record, RunIdentity

_UNWRITABLE = (struct.error, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError)
"""Exceptions of a record with wrong fields: text where a number goes, a number of more than
64 bits, a dict that another thread changes, a tensor that refuses ``float()``. And
``ValueError`` where a signal handler closed the ring in the middle of a ``put``."""

_CLOSE_WAIT_SECONDS = 1.0

SMALL_FILE_SYSTEM = 256 << 20
"""A file system with less room in all has to be shared out. Unit: bytes."""


class RingWriter:
    """Writes the records of one process into its ring; make it with ``create``.

    Any thread may ``put``, one at a time: a record that meets another one on its way
    is dropped, as waiting would block the step. A forked child (a DataLoader worker)
    inherits the object but neither writes nor removes anything.

    Attributes:
        path: The ring file.
        fell_back: Why it is not in the first directory, in words; empty if it is.
        dropped: Records so far that could not be written; also in the file.
    """

    def __init__(self, path: Path, descriptor: int, memory: mmap.mmap, fell_back: str) -> None:
        slots = (len(memory) - layout.HEADER_SIZE) // layout.SLOT_SIZE
        self.path = path
        self.fell_back = fell_back
        self.dropped = 0
        self._descriptor = descriptor
        self._memory = memory
        # Stores of whole words: struct.pack_into would write a moment of zeros first.
        self._header = memoryview(memory)[: layout.HEADER_SIZE].cast("Q")
        self._slots = slots
        self._head = 0
        self._slot = bytearray(layout.SLOT_SIZE)
        # A message longer than an eighth of a small ring would push out too much.
        self._longest = layout.PAYLOAD_SIZE * min(layout.MAX_CHUNKS, slots // 8)
        self._repeats = Repeats(slots)
        self._pid = os.getpid()
        self._open = True
        self._putting = OneAtATime()

    @classmethod
    def create(cls, directories: list[Path], identity: RunIdentity, *, slots: int) -> RingWriter:
        """Create a ring in the first directory that takes one.

        The space is allocated here: a full file system is found now, not as SIGBUS in
        the training loop. Nobody sees the file before it is complete.

        Args:
            directories: Where to try, the best place first; created if missing.
            identity: Who writes.
            slots: Size of the ring; 256 bytes each. Fewer are taken on a small file system
                (``fitting_slots``).

        Raises:
            RingError: If no directory takes it, or the identity cannot be written.
        """
        try:
            encoded = encode_identity(identity)
            layout.pack_header(slots, encoded)  # refused once, not by every directory
        except (AttributeError, TypeError, ValueError) as error:
            msg = f"cannot describe the run in a ring: {error}"
            raise RingError(msg) from error
        run = re.sub(r"[^A-Za-z0-9_-]", "_", identity.run)[:64]
        name = f"{run}-{identity.rank}-{os.getpid()}-{secrets.token_hex(4)}{RING_SUFFIX}"
        refused: list[str] = []
        for directory in directories:
            try:
                descriptor, memory = _make_file(directory, name, encoded, slots)
            except OSError as error:  # RingError of private_directory is one, too
                refused.append(f"{directory} could not be used ({error})")
                continue
            fell_back = f"the ring is in {directory}: {'; '.join(refused)}" if refused else ""
            return cls(directory / name, descriptor, memory, fell_back)
        msg = f"expected a directory for a ring of {layout.file_size(slots)} bytes, got none: {'; '.join(refused)}; set AMPWATCH_RING_DIR to a new directory where there is room"
        raise RingError(msg)

    def put(self, record: Record) -> None:
        """Write ``record``, or drop it and count that.

        Cost: constant; about 4 us for a step. A lasting message that is due is written
        as well (``repeats.py``): as many slots again, and at most one message more.
        """
        # The map is shared with a forked child, the lock object and the head are copies: both
        # would write the same slots.
        if os.getpid() != self._pid:
            self.dropped += 1  # of this copy: the file is the parent's
            return
        if not self._open or not self._putting.run(self._put, record):
            self._drop()

    def close(self, end: EndRecord, *, keep: bool) -> None:
        """Write ``end`` as the last record and let go of the file; again: nothing.

        A reader that has the file open still reads all of it.

        Args:
            end: How the run ended.
            keep: Leave the file, as a flight recorder, for a reader to come.
        """
        ours, self._open = self._open and os.getpid() == self._pid, False
        if not ours:
            return
        # A thread in the middle of a put gets a moment, and not for ever.
        end_of_wait = time.monotonic() + _CLOSE_WAIT_SECONDS
        while self._putting.is_taken and time.monotonic() < end_of_wait:
            time.sleep(0.001)
        self._put(end)
        # After the last record: whoever reads "closed" can read everything before it.
        self._header[layout.STATE] = layout.CLOSED
        self._header.release()
        self._memory.close()
        if not keep:
            with suppress(OSError):  # gone already, or not ours to remove any more
                self.path.unlink()
        os.close(self._descriptor)  # last: until now the writer counts as alive

    def _put(self, record: Record) -> None:
        try:
            kind, payload = encode(record, self._longest)
            chunks = -(-len(payload) // layout.PAYLOAD_SIZE)
            message = Message(kind, payload, chunks)
            self._write_due(chunks)
            self._repeats.remember(record, message, self._head)
            self._write(message)
        except _UNWRITABLE:
            self._drop()

    def _write_due(self, at_least: int) -> None:
        repeated = 0
        while repeated < at_least and (due := self._repeats.due(self._head)):
            self._write(due)
            repeated += due.chunks

    def _write(self, message: Message) -> None:
        kind, payload, chunks = message
        for chunk in range(chunks):
            sequence = self._head + chunk
            start = chunk * layout.PAYLOAD_SIZE
            part = layout.Slot(kind, chunk, chunks, payload[start : start + layout.PAYLOAD_SIZE])
            layout.pack_slot_into(self._slot, sequence, part)
            place = layout.HEADER_SIZE + sequence % self._slots * layout.SLOT_SIZE
            self._memory[place : place + layout.SLOT_SIZE] = self._slot
        # Last: until here no reader knows of these slots, and SIGKILL leaves no half message. No
        # barrier is needed: a reader that sees the head before a slot refuses that by its CRC.
        self._head += chunks
        self._header[layout.HEAD] = self._head

    def _drop(self) -> None:
        self.dropped += 1
        with suppress(ValueError):  # closed: the count stays with the object
            self._header[layout.DROPPED] = self.dropped


def fitting_slots(directory: Path, slots: int) -> int:
    """Return how many of ``slots`` slots a ring in ``directory`` gets.

    On a file system of less than 256 MiB (the shared memory of a container has 64) a ring
    takes a 64th of it at most, so that there is room for eight ranks and for the rings
    of those that crashed; never less than the smallest ring.

    Raises:
        OSError: If the file system cannot be asked.
    """
    status = os.statvfs(directory)
    total = status.f_frsize * status.f_blocks
    if not 0 < total < SMALL_FILE_SYSTEM:  # 0: a tmpfs without a limit
        return slots
    fitting = (total // 64 - layout.HEADER_SIZE) // layout.SLOT_SIZE
    return min(slots, max(layout.MIN_SLOTS, fitting))


def _make_file(directory: Path, name: str, identity: bytes, slots: int) -> tuple[int, mmap.mmap]:
    """Return descriptor and memory of a complete, locked ring under its final name.

    Raises:
        OSError: If the directory does not take it; nothing is left behind then.
    """
    private_directory(directory)
    slots = fitting_slots(directory, slots)
    # Filled and locked under a name that readers pass over; the rename shows all of it at once.
    part = directory / f"{name}.part"
    size = layout.file_size(slots)
    with ExitStack() as undo:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(part, flags, 0o600)
        undo.callback(os.close, descriptor)
        undo.callback(part.unlink)
        os.fchmod(descriptor, 0o600)  # whatever the umask took away
        # Not ftruncate: a store into a hole of a full file system is SIGBUS in the training.
        os.posix_fallocate(descriptor, 0, size)
        # Populated, so that the first lap does not stop for a page fault every 16 slots.
        memory = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        memory[: layout.HEADER_SIZE] = layout.pack_header(slots, identity)
        lock.hold(descriptor)
        part.rename(directory / name)
        undo.pop_all()
    return descriptor, memory
