"""The map of a ring in the process that writes it, and stores that no fault turns into a signal.

A plain store into a map ends the process by SIGBUS where the file was cut, or its file system is
gone or full. The kernel's own store, ``process_vm_writev`` to the calling process itself, fails
with an errno there. It needs no descriptor, obeys no limit on the size of files, and by way of
``ctypes.PyDLL`` does not hand over the interpreter lock in the middle of a training step, as
``os.pwrite`` does. Decision 0002 says what else there was.

Where a kernel or a sandbox refuses the call, stores are plain ones.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

from ampwatch.wire.ring import layout

_REFUSALS = (errno.ENOSYS, errno.EPERM)
"""The words of a kernel without the call, and of a sandbox that does not allow it."""

_WORD_BYTES = 8

MAX_STAGED = 128
"""Slots that are stored in one call at most; a message has 64 at most."""

# PyDLL, and not CDLL, which lets go of the interpreter lock: another thread that computes keeps
# it for 5 ms, and the kernel copies 33 KB at most.
_LIBRARY = ctypes.PyDLL(None, use_errno=True)
_LIBRARY.mmap.restype = ctypes.c_void_p
_LIBRARY.memmove.restype = ctypes.c_void_p


class _Pieces:
    """Pieces of memory that one call copies, in their order.

    Args:
        count: How many.

    Attributes:
        source: Address and length of each piece: ``struct iovec`` of readv(2).
        target: Address and length of where each goes.
        arguments: Those of ``process_vm_writev``.
    """

    def __init__(self, count: int) -> None:
        self.source = (ctypes.c_size_t * (2 * count))()
        self.target = (ctypes.c_size_t * (2 * count))()
        local, remote = (
            ctypes.c_void_p(ctypes.addressof(words)) for words in (self.source, self.target)
        )
        number = ctypes.c_ulong(count)
        # Made here, each of them costs 0.1 us. The pid is our own: no other process is written to.
        pid, flags = ctypes.c_int(os.getpid()), ctypes.c_ulong(0)
        self.arguments = pid, local, number, remote, number, flags


class Memory:
    """A map of a whole file, from its first byte, in the process that made it.

    A store raises ``OSError`` if the file is not whole any more, ``ValueError`` after ``close``.

    Args:
        descriptor: The file; not needed any more after this.
        size: Its size. Unit: bytes.

    Attributes:
        size: Its size. Unit: bytes.
        slots: The slots that ``store_slots`` stores: 256 bytes each, to be filled.
        is_checked: Whether the kernel stores. A plain store into a file that was cut ends the
            process.

    Raises:
        OSError: If it cannot be mapped: no room in the address space, or no longer whole.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        staged = bytearray(MAX_STAGED * layout.SLOT_SIZE)
        begins = range(0, len(staged), layout.SLOT_SIZE)
        self.slots = [memoryview(staged)[begin : begin + layout.SLOT_SIZE] for begin in begins]
        word = bytearray(_WORD_BYTES)
        # Stored in one piece: struct.pack_into would write a moment of zeros first.
        self._value = memoryview(word).cast("Q")
        self._staged = _address(staged)
        self._address = _mapped(descriptor, size)
        self._is_open = True
        # Slots up to the end of the file, those that go on at its begin, and a word after them.
        self._slots_and_word = _Pieces(3)
        self._word_only = _Pieces(1)
        for pieces in (self._slots_and_word, self._word_only):
            pieces.source[-2], pieces.source[-1] = _address(word), _WORD_BYTES
            pieces.target[-1] = _WORD_BYTES
        # A C library may have no such function, a kernel or a sandbox refuse it.
        self.is_checked = hasattr(_LIBRARY, "process_vm_writev")
        try:
            self.store_word(0, 0)  # a header will come there
        except OSError as error:
            if error.errno not in _REFUSALS:
                self.close()
                raise
            self.is_checked = False

    def store(self, place: int, data: bytes) -> None:
        """Store ``data`` at byte ``place``."""
        source, pieces = bytearray(data), _Pieces(1)
        pieces.source[:] = [_address(source), len(data)]
        pieces.target[:] = [self._address + place, len(data)]
        self._copy(pieces, len(data))

    def store_word(self, place: int, value: int) -> None:
        """Store a number of 8 bytes at byte ``place``."""
        self._value[0] = value
        self._word_only.target[0] = self._address + place
        self._copy(self._word_only, _WORD_BYTES)

    def store_slots(self, count: int, place: int, then: int, value: int) -> None:
        """Store the first slots from byte ``place`` on, and after them a number of 8 bytes.

        If this raises, the number was not stored.

        Args:
            count: How many of ``slots``. Beyond the end of the file they go on with its first slot.
            place: Where the first of them goes, in the file.
            then: Where the number goes, in the file.
            value: The number.

        Cost: 2 us, and 0.02 us a slot.
        """
        self._value[0] = value
        source, target = self._slots_and_word.source, self._slots_and_word.target
        size = count * layout.SLOT_SIZE
        straight = min(size, self.size - place)
        source[0], source[1] = self._staged, straight
        source[2], source[3] = self._staged + straight, size - straight
        target[0], target[1] = self._address + place, straight
        target[2], target[3] = self._address + layout.HEADER_SIZE, size - straight
        target[4] = self._address + then
        self._copy(self._slots_and_word, size + _WORD_BYTES)

    def close(self) -> None:
        """Let go of the map; again: nothing."""
        was_open, self._is_open = self._is_open, False
        if was_open:
            _LIBRARY.munmap(ctypes.c_void_p(self._address), ctypes.c_size_t(self.size))

    def _copy(self, pieces: _Pieces, size: int) -> None:
        # The addresses of a map that was closed may be anybody's. There is no call from this line
        # to that which stores, so nobody closes in between.
        if not self._is_open:
            msg = "expected a map that is open, got one that was closed"
            raise ValueError(msg)
        if self.is_checked:
            # Less than all: slots were stored, and then the file was cut.
            copied = _LIBRARY.process_vm_writev(*pieces.arguments)
            if copied != size:
                raise _error(errno.EFAULT if copied >= 0 else ctypes.get_errno())
            return
        for at in range(0, len(pieces.source), 2):
            target, source = ctypes.c_void_p(pieces.target[at]), ctypes.c_void_p(pieces.source[at])
            _LIBRARY.memmove(target, source, pieces.source[at + 1])


def _mapped(descriptor: int, size: int) -> int:
    """Return the address of a map of a file.

    Raises:
        OSError: If there is no room in the address space.
    """
    # Not ``mmap.mmap``: it keeps a copy of the descriptor to close it later, whoever has the number
    # then.
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    # Populated, so that the first lap does not stop for a page fault every 16 slots.
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    address = _LIBRARY.mmap(
        ctypes.c_void_p(None),
        ctypes.c_size_t(size),
        ctypes.c_int(protection),
        ctypes.c_int(flags),
        ctypes.c_int(descriptor),
        ctypes.c_long(0),
    )
    if address in (None, ctypes.c_void_p(-1).value):
        raise _error(ctypes.get_errno())
    return int(address)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _address(data: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(data))
