"""The file format: what the docstring of ``layout.py`` says is what is in the file."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest
from msgspec import msgpack

from ampwatch.wire.ring import layout
from tests.wire.ring.samples import END, IDENTITY, message, ring_bytes, slot_bytes, step

if TYPE_CHECKING:
    from tests.wire.ring.conftest import MakeWriter


def test_a_written_file_has_every_header_field_at_its_documented_offset(
    make_writer: MakeWriter,
) -> None:
    """A program that knows only the documentation can read the header."""
    writer = make_writer(slots=64)
    writer.put(step(1))
    writer.put("not a record")  # type: ignore[arg-type]

    data = writer.path.read_bytes()

    length, crc = struct.unpack_from("=II", data, 40)
    identity = data[48 : 48 + length]
    assert len(data) == 4096 + 64 * 256
    assert data[:8] == b"AMPWATCH"
    assert struct.unpack_from("=HHI", data, 8) == (8, 256, 64)
    assert struct.unpack_from("=QQQ", data, 16) == (1, 1, 0)
    assert crc == zlib.crc32(identity)
    assert json.loads(identity) == asdict(IDENTITY)
    assert not any(data[48 + length : 4096])


def test_a_written_message_has_every_slot_field_at_its_documented_offset(
    make_writer: MakeWriter,
) -> None:
    """A program that knows only the documentation can join a message of three slots."""
    writer = make_writer(slots=64)
    writer.put(step(1))
    writer.put(message(3))

    data = writer.path.read_bytes()

    payload = b""
    for chunk in range(3):
        sequence = 1 + chunk
        slot = data[4096 + 256 * sequence : 4096 + 256 * (sequence + 1)]
        crc, kind, found_chunk, chunks, length, found = struct.unpack_from("=IBBBBQ", slot)
        assert (kind, found_chunk, chunks, found) == (5, chunk, 3, sequence)
        assert crc == zlib.crc32(slot[4:])
        payload += slot[16 : 16 + length]
    assert msgpack.decode(payload) == ["failed", message(3).reason, 1]


def test_a_closed_ring_says_so_in_its_header(make_writer: MakeWriter) -> None:
    """Left behind on purpose, not by a crash."""
    writer = make_writer(slots=64)
    writer.close(END, keep=True)

    assert struct.unpack_from("=QQQ", writer.path.read_bytes(), 16) == (1, 0, 1)


def test_packing_a_slot_leaves_nothing_of_the_one_before() -> None:
    """The buffer is used again and again; zeros follow a short payload."""
    slot = bytearray(b"\xff" * 256)

    layout.pack_slot_into(slot, 9, layout.Slot(1, 0, 1, b"abc"))

    assert bytes(slot) == slot_bytes(9, 1, b"abc")
    assert slot[16:] == b"abc" + bytes(237)


def test_a_slot_is_only_the_slot_of_its_own_sequence() -> None:
    """A slot of an earlier or later lap in the place is not taken for the one sought."""
    slot = slot_bytes(70, 1, b"abc")

    assert layout.unpack_slot(slot, 70) == (1, 0, 1, b"abc")
    assert layout.unpack_slot(slot, 6) is None
    assert layout.unpack_slot(slot, 134) is None


def test_a_slot_that_was_never_written_is_no_slot() -> None:
    """Sequence 0 of a fresh file is not a record of zeros."""
    assert layout.unpack_slot(bytes(256), 0) is None


@pytest.mark.parametrize(("chunk", "chunks"), [(0, 0), (1, 1), (0, 65), (200, 255)])
def test_a_slot_with_impossible_chunks_is_no_slot(chunk: int, chunks: int) -> None:
    """A valid checksum does not make a chunk beyond the last one."""
    assert layout.unpack_slot(slot_bytes(0, 1, b"abc", chunk, chunks), 0) is None


@pytest.mark.parametrize("slots", [0, 63, 262145, -1])
def test_a_header_of_too_few_or_too_many_slots_is_not_made(slots: int) -> None:
    """The error names the bounds, the value and the setting."""
    with pytest.raises(
        ValueError, match=rf"expected 64 to 262144 slots, got {slots}; set ring_slots"
    ):
        layout.pack_header(slots, b"{}")


def test_the_bytes_of_layout_8_never_change() -> None:
    """A change of any packed byte needs a new ``LAYOUT``, or old and new misread each other."""
    data = ring_bytes(1, slot_bytes(0, 1, b"abc"))

    assert layout.LAYOUT == 8
    assert zlib.crc32(data) == 3017113929
