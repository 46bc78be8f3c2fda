"""Rings of somebody who means harm: bytes at random in what releases have written."""

from __future__ import annotations

import os
import random
import struct
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

from ampwatch.errors import RingError
from ampwatch.runtime import SHARED_MEMORY
from ampwatch.state.leftovers import read_ring
from ampwatch.wire.blackbox.document import from_json, to_json
from ampwatch.wire.ring import RingReader, layout
from tests.wire.corpus import FILES

_NUMBERS = (0, 1, 63, 64, 65, 127, 128, 255, 2**15, 2**16 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)


SEEDS = tuple(path.read_bytes() for path in sorted(FILES.glob("*.ring")))
"""Rings that releases have written, of every layout."""


def one(data: bytes) -> object:
    """Read ``data`` as the daemon and ``ampwatch report`` read a ring, with and without its checksums.

    Returns:
        What became of it.

    Raises:
        Exception: On a defect alone. A file that is refused in words is none.
    """
    memory = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    ways = []
    with TemporaryDirectory(dir=memory) as directory:
        path = Path(directory) / "one.ring"
        # What has wrong checksums never comes to the decoders.
        for content in (data, sealed(data)):
            path.write_bytes(content)
            try:
                ways.append(_read(path, content))
            except RingError as error:
                ways.append(str(error)[-40:])
    return tuple(ways)


def sealed(data: bytes) -> bytes:
    """Return ``data`` with right checksums, as somebody who means harm would make them."""
    changed = bytearray(data)
    for place in range(layout.HEADER_SIZE, len(changed), layout.SLOT_SIZE):
        if any(changed[place : place + 16]):  # else it was never written
            _seal(changed, place)
    if len(changed) >= layout.HEADER_SIZE:
        (length,) = struct.unpack_from("=I", changed, 40)
        identity = bytes(changed[48 : 48 + min(length, layout.MAX_IDENTITY)])
        struct.pack_into("=I", changed, 44, zlib.crc32(identity))
    return bytes(changed)


def mutate(data: bytes, source: random.Random) -> bytes:
    """Return ``data`` with a few changes; the checksums of half of the slots changed are right."""
    changed = bytearray(data)
    for _ in range(source.randint(1, 6)):
        if changed:
            source.choice((_flip, _number, _slot, _payload, _swap, _head, _cut))(changed, source)
    return bytes(changed)


def _read(path: Path, data: bytes) -> object:
    reader = RingReader(path)
    try:
        alive = reader.writer_alive()
        records = [*reader.poll(), *reader.poll()]
        # A reader is bounded by the ring, whatever the file claims.
        slots = (len(data) - layout.HEADER_SIZE) // layout.SLOT_SIZE
        assert not alive
        assert len(records) <= slots
        assert 0 <= reader.lost <= slots
    finally:
        reader.close()
    # What is read can be kept, and read again.
    box, _ = read_ring(path, "report", 64)
    (again,) = from_json(to_json([box]), "what was written just now")
    assert again.identity == box.identity
    assert [step.step for step in again.steps] == [step.step for step in box.steps]
    return tuple(type(record).__name__ for record in records)


def _flip(data: bytearray, source: random.Random) -> None:
    data[source.randrange(len(data))] = source.randrange(256)


def _number(data: bytearray, source: random.Random) -> None:
    """Put a number where a number of the header may be."""
    size = source.choice((2, 4, 8))
    at = source.randrange(0, 48, size)
    value = source.choice(_NUMBERS) % 2 ** (8 * size)
    data[at : at + size] = value.to_bytes(size, "little")


def _place(data: bytearray, source: random.Random) -> int:
    """Return where a slot begins that has been written, most of the time."""
    slots = max(1, (len(data) - layout.HEADER_SIZE) // layout.SLOT_SIZE)
    written = min(slots, 24) if source.random() < 0.9 else slots
    return layout.HEADER_SIZE + layout.SLOT_SIZE * source.randrange(written)


def _slot(data: bytearray, source: random.Random) -> None:
    """Change a field of a slot: kind, chunk, chunks, length or sequence."""
    place = _place(data, source)
    at = place + source.choice((4, 5, 6, 7, 8, 9, 15))
    if at < len(data):
        data[at] = source.choice(_NUMBERS[:8])
        _seal(data, place)


def _payload(data: bytearray, source: random.Random) -> None:
    """Change some bytes of a payload: what the decoders see."""
    place = _place(data, source)
    for _ in range(source.randint(1, 8)):
        at = place + 16 + min(source.randrange(240), source.randrange(240))
        if at < len(data):
            data[at] = source.randrange(256)
    _seal(data, place)


def _swap(data: bytearray, source: random.Random) -> None:
    """Put one slot where another one was, under the sequence of that place."""
    size, here, there = layout.SLOT_SIZE, _place(data, source), _place(data, source)
    if max(here, there) + size <= len(data):
        sequence = bytes(data[here + 8 : here + 16])
        data[here : here + size] = data[there : there + size]
        data[here + 8 : here + 16] = sequence
        _seal(data, here)


def _head(data: bytearray, source: random.Random) -> None:
    if len(data) >= layout.HEADER_SIZE:
        value = source.choice((*_NUMBERS, source.randrange(80)))
        struct.pack_into("=Q", data, layout.COUNTERS_OFFSET, value)


def _cut(data: bytearray, source: random.Random) -> None:
    if source.random() < 0.1:  # nothing is read of such a file, so it is tried rarely
        del data[source.randrange(len(data)) :]


def _seal(data: bytearray, place: int) -> None:
    """Make the checksum of a slot right."""
    slot = memoryview(data)[place : place + layout.SLOT_SIZE]
    if len(slot) == layout.SLOT_SIZE:
        struct.pack_into("=I", slot, 0, zlib.crc32(slot[4:]))
    slot.release()
