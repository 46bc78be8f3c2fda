"""The map of a ring in the process that writes it, and stores that no fault turns into a signal.

A plain store into a map ends the process by SIGBUS where the file was cut, or its file system is
gone or full. The kernel's own store, ``process_vm_writev`` to the calling process itself, fails
with an errno there. It needs no descriptor, obeys no limit on the size of files, and by way of
``ctypes.PyDLL`` does not hand over the interpreter lock in the middle of a training step, as
``os.pwrite`` does. Decision 0048 says what else there was.

Where a kernel or a sandbox refuses the call, stores are plain ones.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import Any

from ampwatch.wire.ring import layout

_REFUSALS = (errno.ENOSYS, errno.EPERM)
"""The words of a kernel without the call, and of a sandbox that does not allow it."""

_WORD_BYTES = 8

# PyDLL, and not CDLL, which lets go of the interpreter lock: another thread that computes keeps
# it for 5 ms, and the kernel copies 264 bytes.
_LIBRARY = ctypes.PyDLL(None, use_errno=True)
_LIBRARY.mmap.restype = ctypes.c_void_p
_LIBRARY.memmove.restype = ctypes.c_void_p


class Memory:
    """A map of a whole file, from its first byte, in the process that made it.

    A store raises ``OSError`` if the file is not whole any more, ``ValueError`` after ``close``.

    Args:
        descriptor: The file; not needed any more after this.
        size: Its size. Unit: bytes.

    Attributes:
        size: Its size. Unit: bytes.
        slot: The slot that ``store_slot`` stores: 256 bytes to be filled.
        is_checked: Whether the kernel stores. A plain store into a file that was cut ends the
            process.

    Raises:
        OSError: If it cannot be mapped: no room in the address space, or no longer whole.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self.slot = bytearray(layout.SLOT_SIZE)
        self._word = bytearray(_WORD_BYTES)
        # Stored in one piece: struct.pack_into would write a moment of zeros first.
        self._value = memoryview(self._word).cast("Q")
        self._address = _mapped(descriptor, size)
        self._is_open = True
        # Two ``struct iovec`` (readv(2)) each: a slot, and a word that is stored after it.
        self._source = _words(_address(self.slot), layout.SLOT_SIZE, _address(self._word), 8)
        self._target = _words(0, layout.SLOT_SIZE, 0, _WORD_BYTES)
        # Made here, each of them costs 0.1 us. The pid is our own: no other process is written to.
        self._slot_only = _arguments(self._source, self._target, count=1)
        self._slot_and_word = _arguments(self._source, self._target, count=2)
        self._word_only = _arguments(self._source, self._target, first=1, count=1)
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
        source = bytearray(data)
        where = _words(_address(source), len(data)), _words(self._address + place, len(data))
        self._copy(_arguments(*where, count=1), len(data), place, source)

    def store_word(self, place: int, value: int) -> None:
        """Store a number of 8 bytes at byte ``place``."""
        self._value[0] = value
        self._target[2] = self._address + place
        self._copy(self._word_only, _WORD_BYTES, place, self._word)

    def store_slot(self, place: int) -> None:
        """Store the slot at byte ``place``. Cost: as ``store_slot_and_word``."""
        self._target[0] = self._address + place
        self._copy(self._slot_only, layout.SLOT_SIZE, place, self.slot)

    def store_slot_and_word(self, place: int, then: int, value: int) -> None:
        """Store the slot at byte ``place``, and after it a number of 8 bytes at byte ``then``.

        If this raises, the number was not stored.

        Cost: 1.5 us, a third of it in the kernel.
        """
        self._value[0] = value
        self._target[0] = self._address + place
        self._target[2] = self._address + then
        size = layout.SLOT_SIZE + _WORD_BYTES
        self._copy(self._slot_and_word, size, place, self.slot, then, self._word)

    def close(self) -> None:
        """Let go of the map; again: nothing."""
        was_open, self._is_open = self._is_open, False
        if was_open:
            _LIBRARY.munmap(ctypes.c_void_p(self._address), ctypes.c_size_t(self.size))

    def _copy(self, arguments: tuple[Any, ...], size: int, *plain: Any) -> None:
        # The addresses of a map that was closed may be anybody's. There is no call from this line
        # to that which stores, so nobody closes in between.
        if not self._is_open:
            msg = "expected a map that is open, got one that was closed"
            raise ValueError(msg)
        if self.is_checked:
            # Less than all: the slot was stored, and then the file was cut.
            copied = _LIBRARY.process_vm_writev(*arguments)
            if copied != size:
                raise _error(errno.EFAULT if copied >= 0 else ctypes.get_errno())
            return
        for place, data in zip(plain[::2], plain[1::2], strict=True):
            target, source = self._address + place, _address(data)
            _LIBRARY.memmove(ctypes.c_void_p(target), ctypes.c_void_p(source), len(data))


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


def _words(*values: int) -> ctypes.Array[ctypes.c_size_t]:
    return (ctypes.c_size_t * len(values))(*values)


def _address(data: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(data))


def _arguments(
    source: ctypes.Array[ctypes.c_size_t],
    target: ctypes.Array[ctypes.c_size_t],
    *,
    first: int = 0,
    count: int,
) -> tuple[Any, ...]:
    """Return the arguments of ``process_vm_writev`` for some of the pieces of two lists."""
    begins = (
        ctypes.addressof(pieces) + first * 2 * ctypes.sizeof(ctypes.c_size_t)
        for pieces in (source, target)
    )
    local, remote = map(ctypes.c_void_p, begins)
    number = ctypes.c_ulong(count)
    return ctypes.c_int(os.getpid()), local, number, remote, number, ctypes.c_ulong(0)
