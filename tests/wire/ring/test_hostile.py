"""Files that are no rings, or rings of somebody who means harm: refused, or survived."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampwatch.errors import RingError
from ampwatch.wire.ring import RingReader, layout
from tests.wire.ring.conftest import MakeWriter, OpenReader
from tests.wire.ring.samples import (
    ring_bytes,
    slot_bytes,
    step,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "ring"


@given(
    data=st.binary(max_size=200)
    | st.binary(max_size=200).map(lambda tail: layout.MAGIC + tail)
    | st.binary(max_size=200).map(lambda tail: (layout.MAGIC + tail).ljust(4096 + 64 * 256, b"\0"))
)
def test_garbage_is_refused_with_a_ring_error(data: bytes, shared: Path) -> None:
    """Nothing else is ever raised on opening."""
    shared.write_bytes(data)

    with pytest.raises(RingError, match="cannot read ring"):
        RingReader(shared)


@given(data=st.data())
def test_a_damaged_header_is_refused_or_read_and_never_crashes(
    data: st.DataObject, shared: Path
) -> None:
    """Any byte of the header may be anything."""
    ring = bytearray(ring_bytes(1, slot_bytes(0, 1, b"x")))
    for offset in data.draw(st.lists(st.integers(0, 400), min_size=1, max_size=4)):
        ring[offset] = data.draw(st.integers(0, 255))
    shared.write_bytes(ring)
    try:
        reader = RingReader(shared)
    except RingError:
        return
    assert reader.poll() == []
    assert reader.lost >= 0
    reader.close()


@pytest.mark.nightly
@given(
    heads=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 200), min_size=1, max_size=4),
    slots=st.lists(
        st.tuples(
            st.integers(0, 255),
            st.integers(0, 3),
            st.integers(0, 4),
            st.binary(max_size=240),
        ),
        max_size=20,
    ),
    base=st.integers(0, 200),
)
def test_valid_slots_of_any_content_never_make_poll_raise(
    heads: list[int], slots: list[tuple[int, int, int, bytes]], base: int, shared: Path
) -> None:
    """Right checksums, and everything else out of joint: heads that jump, kinds, chunks."""
    body = b"".join(
        slot_bytes(base // 64 * 64 + index, kind, payload, chunk, chunks)
        for index, (kind, chunk, chunks, payload) in enumerate(slots)
    )
    shared.write_bytes(ring_bytes(heads[0], body))
    reader = RingReader(shared)
    for head in heads:
        shared.write_bytes(ring_bytes(head, body))
        reader.poll()
    reader.close()

    assert 0 <= reader.lost <= 2**64


def test_a_head_from_the_end_of_the_numbers_costs_one_lap_of_reading(
    tmp_path: Path, open_reader: OpenReader
) -> None:
    """A poll is bounded by the ring, whatever the header claims."""
    (tmp_path / "ring").write_bytes(ring_bytes(2**64 - 1, b""))
    reader = open_reader(tmp_path / "ring")

    assert reader.joined_late
    assert reader.poll() == []
    assert reader.lost == 0


def test_a_file_cut_before_it_is_opened_is_refused_at_every_length(
    tmp_path: Path, make_writer: MakeWriter
) -> None:
    """Only the whole file is a ring."""
    writer = make_writer(slots=64)
    writer.put(step(1))
    data = writer.path.read_bytes()
    path = tmp_path / "cut"
    for length in [*range(0, 400, 7), 4095, 4096, 4097, 4352, len(data) - 1, len(data) + 1]:
        path.write_bytes(data[:length].ljust(min(length, len(data) + 1), b"\0"))

        with pytest.raises(RingError, match="expected a"):
            RingReader(path)


@pytest.mark.parametrize("length", [0, 10, 16, 20, 40, 4096, 4097, 4096 + 256, 4096 + 700])
def test_a_file_cut_while_it_is_open_ends_quietly(
    length: int, make_writer: MakeWriter, open_reader: OpenReader, tmp_path: Path
) -> None:
    """No SIGBUS, no exception: the slots that are gone are lost."""
    writer = make_writer()
    for index in range(4):
        writer.put(step(index))
    path = tmp_path / "cut"
    path.write_bytes(writer.path.read_bytes())
    reader = open_reader(path)
    os.truncate(path, length)

    whole = max(0, length - 4096) // 256

    assert reader.poll() == [step(index) for index in range(whole)]
    assert reader.lost == (4 - whole if length >= 40 else 0)
    assert reader.poll() == []
    assert not reader.writer_alive()


@pytest.mark.parametrize(
    ("offset", "value"), [(10, 128), (10, 0), (12, 0), (12, 65), (12, 2**31), (40, 4049), (40, 0)]
)
def test_sizes_that_do_not_fit_the_file_are_refused(
    offset: int, value: int, tmp_path: Path
) -> None:
    """No size from a file is believed without the file itself."""
    ring = bytearray(ring_bytes(0, b""))
    struct.pack_into("=H" if offset == 10 else "=I", ring, offset, value)
    (tmp_path / "ring").write_bytes(ring)

    with pytest.raises(RingError, match=r"expected a whole ring|expected an intact identity"):
        RingReader(tmp_path / "ring")


def test_a_symbolic_link_is_refused(tmp_path: Path, make_writer: MakeWriter) -> None:
    """A machine-wide daemon must not be led to a file of another user."""
    (tmp_path / "link").symlink_to(make_writer().path)

    with pytest.raises(RingError, match="cannot open ring"):
        RingReader(tmp_path / "link")


def test_a_fifo_is_refused_without_waiting_for_its_other_end(tmp_path: Path) -> None:
    """Opening it the usual way would block for ever."""
    os.mkfifo(tmp_path / "fifo")

    with pytest.raises(RingError, match=r"expected a regular file, got prw"):
        RingReader(tmp_path / "fifo")


@pytest.mark.parametrize("name", [".", "absent", "a\0b"])
def test_what_cannot_be_opened_is_a_ring_error(name: str, tmp_path: Path) -> None:
    """A directory, a file that has just gone, a name that no file has."""
    with pytest.raises(RingError, match=r"cannot (open|read) ring"):
        RingReader(tmp_path / name)


def test_a_refused_file_leaves_no_descriptor_open(tmp_path: Path) -> None:
    """A daemon that looks at a bad file twice a second must not run out of them."""
    (tmp_path / "bad").write_bytes(b"bad")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        with pytest.raises(RingError):
            RingReader(tmp_path / "bad")

    assert len(list(Path("/proc/self/fd").iterdir())) == before
