"""The writing end of the ring, in the training process.

What is written goes into a map of the file, by way of the kernel (``memory.py``): a file that
somebody cuts is an error here, and no signal that ends the training. No descriptor is written to,
since a program may close all descriptors, and open a file of its own under the same number. The
descriptor holds the lock alone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
import secrets
import struct
import time
from contextlib import ExitStack, suppress
from threading import get_ident
from typing import TYPE_CHECKING

from ampwatch.errors import RingError, remedy_of
from ampwatch.guard import Log, is_of_a_signal
from ampwatch.runtime import RING_SUFFIX, private_directory
from ampwatch.wire.ring import layout, lock
from ampwatch.wire.ring.encoding import encode, encode_identity
from ampwatch.wire.ring.memory import MAX_STAGED, Memory
from ampwatch.wire.ring.repeats import Message, Repeats

if TYPE_CHECKING:
    from pathlib import Path

    from ampwatch.wire.records import EndRecord, Record, RunIdentity

logger = Log()

_UNWRITABLE = (
    struct.error,
    TypeError,
    ValueError,
    AttributeError,
    RuntimeError,
    ArithmeticError,
    MemoryError,
)
"""Exceptions of a record with wrong fields: text where a number goes, a number of more than
64 bits, a dict that another thread changes, a tensor that refuses ``float()``. ``MemoryError``
where the process may have no more."""

STEP = layout.RecordKind.STEP

_CLOSE_WAIT_SECONDS, _CLOSE_NAP_SECONDS = 1.0, 0.005

_MIN_DESCRIPTOR = 700
"""Number from which the descriptor of a ring is taken. New files get the lowest number that is
free, so that of a descriptor which the program closes is not soon another file's."""

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
        trouble: What first happened to the file, in words; empty if nothing did. It is logged.
    """

    def __init__(
        self, path: Path, descriptor: int, memory: Memory, header: bytes, fell_back: str
    ) -> None:
        slots = (memory.size - layout.HEADER_SIZE) // layout.SLOT_SIZE
        self.path = path
        self.fell_back = fell_back
        self.dropped = 0
        self.trouble = ""
        self._descriptor = descriptor
        self._status = os.fstat(descriptor)
        self._memory = memory
        self._header = header
        self._slots = slots
        self._head = 0
        self._faults = self._next_attempt = 0
        # A message longer than an eighth of a small ring would push out too much.
        self._longest = layout.PAYLOAD_SIZE * min(layout.MAX_CHUNKS, slots // 8)
        # Nor are more overwritten at a time: a reader does not know of them before they are all there.
        self._max_staged = min(MAX_STAGED, slots // 8)
        self._staged = self._records = 0
        self._repeats = Repeats(slots)
        self._pid = os.getpid()
        self._open = True
        # The thread that puts; 0 for none. No lock: an interrupt may come between taking one and
        # whatever would release it.
        self._holder = 0

    @classmethod
    def create(cls, directories: list[Path], identity: RunIdentity, *, slots: int) -> RingWriter:
        """Create a ring in the first directory that takes one.

        The space is allocated here: a full file system is found now, not in the middle of
        the run. Nobody sees the file before it is complete.

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
        remedy = "set AMPWATCH_RING_DIR to a new directory where there is room"
        for directory in directories:
            try:
                descriptor, memory, header = _make_file(directory, name, encoded, slots)
            except OSError as error:  # RingError of private_directory is one, too
                refused.append(f"{directory} could not be used ({error})")
                remedy = remedy_of(error, remedy)
                continue
            fell_back = f"the ring is in {directory}: {'; '.join(refused)}" if refused else ""
            return cls(directory / name, descriptor, memory, header, fell_back)
        msg = f"expected a directory for a ring of {layout.file_size(slots)} bytes, got none: {'; '.join(refused)}; {remedy}"
        raise RingError(msg)

    def put(self, *records: Record) -> None:
        """Write ``records`` in their order, or drop them and count that.

        No reader sees one of them before this returns, or 128 slots are full.

        Cost: 3 us, and as much for a step. A lasting message that is due is written
        as well (``repeats.py``): as many slots again, and at most one message more.
        """
        # The map is shared with a forked child, the lock object and the head are copies: both
        # would write the same slots.
        if os.getpid() != self._pid:
            self.dropped += len(records)  # of this copy: the file is the parent's
            return
        me = get_ident()
        # No call from here to the next line, so no other thread and no interrupt in between. What
        # is held by this thread was left by an interrupt, or by a put that a signal handler has
        # interrupted: its slots are overwritten, and refused by their sequence.
        if not self._open or self._holder not in (0, me):
            self._drop(len(records))
            return
        self._holder = me
        try:
            self._put(*records)
        finally:
            self._holder = 0

    @property
    def nbytes(self) -> int:
        """Size of the file, which is in memory. Unit: B."""
        return self._memory.size

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
        patience = _CLOSE_WAIT_SECONDS
        while self._holder not in (0, get_ident()) and patience > 0:
            time.sleep(_CLOSE_NAP_SECONDS)
            patience -= _CLOSE_NAP_SECONDS
        self._put(end)
        # After the last record: whoever reads "closed" can read everything before it.
        with suppress(OSError, ValueError):  # cut: who reads it sees that the lock is gone
            self._memory.store_word(8 * layout.STATE, layout.CLOSED)
        self._memory.close()
        if not keep:
            with suppress(OSError):  # gone already, or not ours to remove any more
                self.path.unlink()
        if self._has_descriptor():  # else the number may be that of a file of the program's
            os.close(self._descriptor)  # last: until now the writer counts as alive

    def _put(self, *records: Record) -> None:
        # What an interrupt has left there is not to be written any more.
        self._staged = self._records = 0
        try:
            for record in records:
                self._take(record)
        finally:
            # Also before an interrupt goes on: nobody hands in again what came before it.
            self._publish()

    def _take(self, record: Record) -> None:
        """Stage a record, and what is to be repeated before it."""
        try:
            kind, payload = encode(record, self._longest)
            chunks = -(-len(payload) // layout.PAYLOAD_SIZE)
            if self._head + self._staged >= self._repeats.due_at:
                self._stage_due(chunks)
            if chunks == 1 and kind is STEP and self._staged < self._max_staged:
                # In line: there is one of each step, and it does not last.
                place = self._staged
                slot = self._memory.slots[place]
                layout.pack_slot_into(slot, self._head + place, kind, 0, 1, payload)
                self._staged = place + 1
            else:
                message = Message(kind, payload, chunks)
                self._repeats.remember(record, message, self._head + self._staged)
                self._stage(message)
            self._records += 1
        except OSError as error:  # of what computes a field
            if is_of_a_signal(error):  # TimeoutError is an OSError
                raise
            self._drop()
        except _UNWRITABLE:
            self._drop()

    def _check_descriptor(self) -> None:
        try:
            # 0.1 us, in which no other thread gets the interpreter lock. Nothing is written by it:
            # what has its number now, if anything, may be the program's.
            os.get_inheritable(self._descriptor)
        except OSError as error:
            if is_of_a_signal(error):
                raise
            self._recover(error)

    def _stage_due(self, at_least: int) -> None:
        repeated = 0
        while repeated < at_least and (due := self._repeats.due(self._head + self._staged)):
            self._stage(due)
            repeated += due.chunks

    def _stage(self, message: Message) -> None:
        """Fill the slots of a message, in our memory yet."""
        kind, payload, chunks = message
        if self._staged + chunks > self._max_staged:
            self._publish()
        slots, staged, head, size = (
            self._memory.slots,
            self._staged,
            self._head,
            layout.PAYLOAD_SIZE,
        )
        for chunk in range(chunks):
            part = payload[chunk * size : (chunk + 1) * size]
            at = staged + chunk
            layout.pack_slot_into(slots[at], head + at, kind, chunk, chunks, part)
        self._staged = staged + chunks

    def _publish(self) -> None:
        """Store what is staged, and the head after it."""
        slots, records, head = self._staged, self._records, self._head
        self._staged = self._records = 0
        if not slots:
            return
        self._check_descriptor()
        place = layout.HEADER_SIZE + head % self._slots * layout.SLOT_SIZE
        # The head after the last slot: until then no reader knows of them, and SIGKILL leaves no
        # half message. No barrier is needed: a reader that sees the head before a slot refuses that
        # by its CRC.
        self._head = head + slots
        try:
            self._memory.store_slots(slots, place, 8 * layout.HEAD, self._head)
        except OSError as error:  # no plain file any more
            self._head = head
            if is_of_a_signal(error):
                raise
            self._drop(records)
            self._recover(error)
        except ValueError:  # closed by a signal handler in the middle of a put
            self._drop(records)

    def _drop(self, records: int = 1) -> None:
        self.dropped += records
        with suppress(OSError, ValueError):  # cut or closed: the count stays with the object
            self._memory.store_word(8 * layout.DROPPED, self.dropped)

    def _recover(self, error: OSError) -> None:
        """Restore what was done to the file, or to its descriptor, and say so once. Never raises."""
        # Rarer and rarer: a file system that stays full must not cost each step a millisecond. Not
        # counted in records that are dropped: without its lock the file takes all of them.
        self._faults += 1
        if self._faults < self._next_attempt:
            return
        try:
            what = self._restore()
        except OSError as obstacle:
            self._next_attempt = 2 * self._faults + 1
            self._report(
                f"{error.strerror}, and it cannot be restored: {obstacle}; the page and metrics show what came before"
            )
            return
        self._faults = self._next_attempt = 0
        self._report(what)

    def _report(self, what: str) -> None:
        if self.trouble:
            return
        self.trouble = (
            f"the ring {self.path} cannot be written as it was: {what}. Training is not affected"
        )
        logger.warning("%s", self.trouble)

    def _restore(self) -> str:
        """Take the lock again if it was lost, and make the file whole again if it was cut.

        Returns:
            What had happened, in words.

        Raises:
            OSError: If it cannot be done, or nothing is to be seen of what has happened.
        """
        done = []
        if not self._has_descriptor():
            self._descriptor = _opened_again(self.path, self._status)
            done.append("all its descriptors were closed; it was opened again, and goes on")
        size = os.fstat(self._descriptor).st_size
        if size < self._memory.size:
            _allocate(self._descriptor, self._memory.size)
            self._memory.store(0, self._header)
            self._memory.store_word(8 * layout.HEAD, self._head)
            self._memory.store_word(8 * layout.DROPPED, self.dropped)
            done.append(f"the file was cut to {size} bytes; what it held is lost, and it goes on")
        if not done:
            raise OSError(errno.EIO, "the file is there, and whole")
        return "; ".join(done)

    def _has_descriptor(self) -> bool:
        """Return whether the descriptor is still that of the ring."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._status)
        except OSError:
            return False


def _opened_again(path: Path, expected: os.stat_result) -> int:
    """Return a descriptor of the ring, with its lock.

    Raises:
        OSError: If it is not there any more, or no file can be opened.
    """
    with ExitStack() as undo:
        descriptor = _opened(path, os.O_RDWR | os.O_NONBLOCK)
        undo.callback(os.close, descriptor)
        if not os.path.samestat(os.fstat(descriptor), expected):
            raise FileNotFoundError(errno.ENOENT, "another file has its name", str(path))
        lock.hold(descriptor)
        undo.pop_all()
    return descriptor


def _opened(path: Path, flags: int) -> int:
    """Return a descriptor of a file, out of the way of those that the program opens and closes.

    Raises:
        OSError: If the file cannot be opened.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _MIN_DESCRIPTOR)
    except OSError:  # the process may not have numbers as high
        return descriptor
    os.close(descriptor)  # before there is a lock, which this would take away
    return high


def _allocate(descriptor: int, size: int) -> None:
    """Give a file room for ``size`` bytes.

    Raises:
        OSError: If there is none, or the process may not have files as large.
    """
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if 0 <= most < size:  # asked first: beyond the limit the kernel sends SIGXFSZ
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    # Not ftruncate: holes could not be filled any more once the file system is full.
    os.posix_fallocate(descriptor, 0, size)


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


def _make_file(
    directory: Path, name: str, identity: bytes, slots: int
) -> tuple[int, Memory, bytes]:
    """Return descriptor, memory and header of a complete, locked ring under its final name.

    Raises:
        OSError: If the directory does not take it; nothing is left behind then.
    """
    private_directory(directory)
    slots = fitting_slots(directory, slots)
    # Filled and locked under a name that readers pass over; the rename shows all of it at once.
    part = directory / f"{name}.part"
    size = layout.file_size(slots)
    with ExitStack() as undo:
        descriptor = _opened(part, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        undo.callback(os.close, descriptor)
        # Under either name: an interrupt may come right after the rename.
        undo.callback((directory / name).unlink, missing_ok=True)
        undo.callback(part.unlink, missing_ok=True)
        os.fchmod(descriptor, 0o600)  # whatever the umask took away
        _allocate(descriptor, size)
        memory = Memory(descriptor, size)
        undo.callback(memory.close)
        header = layout.pack_header(slots, identity)
        memory.store(0, header)
        lock.hold(descriptor)
        part.rename(directory / name)
        undo.pop_all()
    return descriptor, memory, header
