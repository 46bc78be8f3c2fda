"""The file format: what the docstring of ``layout.py`` says is what is in the file."""

from __future__ import annotations

import pytest

from ampwatch.wire.ring import layout
from tests.wire.ring.samples import slot_bytes


def test_packing_a_slot_leaves_nothing_of_the_one_before() -> None:
    """The buffer is used again and again; zeros follow a short payload."""
    slot = bytearray(b"\xff" * 256)

    layout.pack_slot_into(slot, 9, 1, 0, 1, b"abc")

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
