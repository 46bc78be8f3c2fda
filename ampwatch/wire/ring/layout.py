"""The ring file, byte by byte; nothing here knows what a record means.

A file is one header page and ``slots`` slots of 256 bytes. Numbers are in the
byte order of the machine: the file does not leave it, and on a machine of the
other order it shows as another layout version and is refused.

Header, 4096 bytes::

    offset  size  field
         0     8  magic, b"AMPWATCH"
         8     2  layout version
        10     2  slot size, 256
        12     4  number of slots
        16     8  head: sequence of the next slot, i.e. slots published so far
        24     8  dropped: records the writer could not write so far
        32     8  state: 0 being written, 1 closed by its writer
        40     4  length of the identity
        44     4  CRC-32 (zlib) of the identity
        48     .  identity: a ``RunIdentity`` as a JSON object in UTF-8; then zeros

Only ``head``, ``dropped`` and ``state`` change after the file has its name. Each
is 8 bytes, aligned, stored in one piece.

Slot ``sequence % slots``, 256 bytes, at ``4096 + 256 * (sequence % slots)``::

    offset  size  field
         0     4  CRC-32 (zlib) of the other 252 bytes
         4     1  kind of the record, see ``RecordKind``
         5     1  chunk: which part of the message this is, from 0
         6     1  chunks: of how many
         7     1  length of the payload in this slot, at most 240
         8     8  sequence
        16   240  payload, then zeros

A *message* is one record: 1 to 64 consecutive slots, whose payloads joined are
what ``encoding.py`` describes. The writer fills all slots of a message and then
moves ``head`` past them, so a message cut short by SIGKILL was never published.

A reader trusts a slot only if the CRC holds and the sequence is the one it came
for. This catches the torn, the half-overwritten and the never-written slot (the
CRC of zeros is not zero), and needs no memory ordering between the two processes.

The writer holds a record lock on byte 0 for its life (``lock.py``). A file without
its final name (``*.part``) is unfinished: a writer died while making it.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import NamedTuple

LAYOUT = 9
"""Version of everything above and of the payloads in ``encoding.py``. A reader knows one.

1: steps, optimizers, facts, findings, ends. 2: ranges and sampling as well.
3: the op census and profiler windows as well. 4: payloads as msgspec packs them; failures of
sensors as well. 5: ranges say what a format has flushed, and what that was before.
6: checksums of weights as well. 7: norms of gradients in their ranges. 8: where the time of steps
goes, on the host in their records and on a device in records of its own; memory, blocks
in ranges, and precision plans, as well. 9: checksums are all that ranks are compared by; culprits
of skipped steps, and what was tried about findings, as well.
"""

MAGIC = b"AMPWATCH"
HEADER_SIZE = 4096
SLOT_SIZE = 256
PAYLOAD_SIZE = 240
MAX_CHUNKS = 64
MIN_SLOTS = 64
MAX_SLOTS = 262144

HEAD, DROPPED, STATE = 2, 3, 4
"""Index of each changing field in the header, seen as 8-byte words."""

KIND = 4
"""Byte of a slot that is the kind of its record."""

CLOSED = 1
COUNTERS_OFFSET = 8 * HEAD
COUNTERS = struct.Struct("=QQQ")

_HEADER = struct.Struct("=8sHHIQQQII")
_SLOT = struct.Struct("=IBBBBQ")
_SLOT_CRC = struct.Struct("=I")
_SLOT_REST = struct.Struct(f"=BBBBQ{PAYLOAD_SIZE}s")
MAX_IDENTITY = HEADER_SIZE - _HEADER.size


class RecordKind(IntEnum):
    """Type of the record in the payload of a message."""

    STEP = 1
    OPTIMIZER = 2
    FACTS = 3
    FINDING = 4
    END = 5
    RANGE = 6
    SAMPLING = 7
    CENSUS = 8
    WINDOW = 9
    FAILURE = 10
    CHECKSUM = 11
    DEVICE_PHASES = 12
    MEMORY = 13
    PLAN = 14
    BUDGET = 15
    CULPRIT = 16


class Slot(NamedTuple):
    """Content of an intact slot; ``kind`` may be one that this version does not know."""

    kind: int
    chunk: int
    chunks: int
    payload: bytes


def file_size(slots: int) -> int:
    """Return the size of a ring file of ``slots`` slots. Unit: bytes."""
    return HEADER_SIZE + SLOT_SIZE * slots


def pack_header(slots: int, identity: bytes) -> bytes:
    """Return the header page of a new ring.

    Raises:
        ValueError: If ``slots`` or the length of ``identity`` is out of bounds.
    """
    if not MIN_SLOTS <= slots <= MAX_SLOTS:
        msg = f"expected {MIN_SLOTS} to {MAX_SLOTS} slots, got {slots}; set ring_slots"
        raise ValueError(msg)
    if len(identity) > MAX_IDENTITY:
        msg = f"expected an identity of at most {MAX_IDENTITY} bytes, got {len(identity)}; choose a shorter run name"
        raise ValueError(msg)
    crc = zlib.crc32(identity)
    fixed = _HEADER.pack(MAGIC, LAYOUT, SLOT_SIZE, slots, 0, 0, 0, len(identity), crc)
    return (fixed + identity).ljust(HEADER_SIZE, b"\0")


class OtherLayoutError(ValueError):
    """A ring is of another release."""


def unpack_header(page: bytes, size: int) -> tuple[int, bytes]:
    """Return the number of slots and the identity of a ring.

    Args:
        page: The first 4096 bytes of the file, fewer if there are fewer.
        size: Size of the file. Unit: bytes.

    Raises:
        ValueError: If this is no ring, or one that was cut.
        OtherLayoutError: If it is one of another release.
    """
    # Nothing of the file is believed before the magic, the layout and its size agree.
    if len(page) < HEADER_SIZE or not page.startswith(MAGIC):
        msg = f"expected a ring, got {len(page)} bytes that begin with {page[:8]!r}; remove the file if it stays"
        raise ValueError(msg)
    _, layout, slot_size, slots, _, _, _, length, crc = _HEADER.unpack_from(page)
    if layout != LAYOUT:
        age, behind = ("an older", "training") if layout < LAYOUT else ("a newer", "daemon")
        msg = f"expected a ring of layout {LAYOUT}, got layout {layout} of {age} ampwatch; training and daemon need the same version: upgrade that of the {behind} and start it again"
        raise OtherLayoutError(msg)
    if slot_size != SLOT_SIZE or not MIN_SLOTS <= slots <= MAX_SLOTS or size != file_size(slots):
        msg = f"expected a whole ring, got {size} bytes for {slots} slots of {slot_size} bytes; remove the file if it stays"
        raise ValueError(msg)
    identity = page[_HEADER.size : _HEADER.size + length]
    if length > MAX_IDENTITY or zlib.crc32(identity) != crc:
        msg = f"expected an intact identity, got {length} bytes of another checksum; remove the file if it stays"
        raise ValueError(msg)
    return slots, identity


def pack_slot_into(
    slot: bytearray | memoryview, sequence: int, kind: int, chunk: int, chunks: int, payload: bytes
) -> None:
    """Fill ``slot`` (256 bytes) with one chunk of a message, its payload padded with zeros."""
    # "s" pads with zeros, so that nothing of the record before is left, or under the CRC.
    _SLOT_REST.pack_into(slot, 4, kind, chunk, chunks, len(payload), sequence, payload)
    _SLOT_CRC.pack_into(slot, 0, zlib.crc32(memoryview(slot)[4:]))


def unpack_slot(slot: bytes, sequence: int) -> Slot | None:
    """Return the content of ``slot`` (256 bytes, or fewer at the end of a cut file).

    Returns:
        ``None`` if it is not, whole and undamaged, the slot of this ``sequence``.
    """
    if len(slot) < SLOT_SIZE:
        return None
    crc, kind, chunk, chunks, length, found = _SLOT.unpack_from(slot)
    # The cheap test first: after a lap most of what is refused is of another sequence.
    if found != sequence or zlib.crc32(memoryview(slot)[4:]) != crc:
        return None
    # A CRC says that the slot is as it was written, not that an honest writer wrote it.
    if not chunk < chunks <= MAX_CHUNKS or length > PAYLOAD_SIZE:
        return None
    return Slot(kind, chunk, chunks, slot[_SLOT.size : _SLOT.size + length])
