"""The reading end: everything in order, what was missed counted to the slot."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import msgpack
from msgspec.structs import replace

from ampwatch.wire.records import EndRecord, FactsRecord, FindingRecord, Record
from ampwatch.wire.ring import RingReader, RingWriter
from ampwatch.wire.ring.layout import RecordKind
from tests.wire.ring.conftest import MakeWriter, OpenReader
from tests.wire.ring.samples import (
    END,
    FACTS,
    IDENTITY,
    finding,
    message,
    optimizer,
    ring_bytes,
    slot_bytes,
    step,
)


def test_records_come_once_and_in_order(make_writer: MakeWriter, open_reader: OpenReader) -> None:
    """Every kind of record, over several polls."""
    writer = make_writer()
    reader = open_reader(writer.path)
    records: list[Record] = [FACTS, step(1), optimizer(0), finding(), step(2)]
    for record in records[:3]:
        writer.put(record)
    first = reader.poll()
    for record in records[3:]:
        writer.put(record)
    second = reader.poll()

    assert first == records[:3]
    assert second == records[3:]
    assert reader.poll() == []
    assert reader.lost == 0


@pytest.mark.parametrize("slots", [64, 256])
def test_a_reader_of_some_kinds_reads_what_is_of_them_and_no_more(
    slots: int, make_writer: MakeWriter, open_reader: OpenReader
) -> None:
    """Over several laps, with messages of several slots between others."""
    writer = make_writer(slots=slots)
    everything = open_reader(writer.path)
    some = RingReader(writer.path, RecordKind.FINDING, RecordKind.FACTS)
    for lap in range(9):
        for index in range(lap * 7):
            writer.put(step(index), finding(where=f"{lap} {index}"), FACTS)
        found = everything.poll()
        assert some.poll() == [r for r in found if isinstance(r, (FindingRecord, FactsRecord))]
    some.close()


@pytest.mark.parametrize("written", [63, 64, 65, 1000])
def test_a_late_reader_gets_the_last_lap_and_has_lost_nothing(
    written: int, make_writer: MakeWriter, open_reader: OpenReader
) -> None:
    """A ring of 64 slots holds the last 64 steps; what was before, nobody here has missed."""
    writer = make_writer(slots=64)
    for index in range(written):
        writer.put(step(index))

    reader = open_reader(writer.path)

    assert reader.poll() == [step(i) for i in range(max(0, written - 64), written)]
    assert reader.joined_late is (written > 64)
    assert reader.lost == 0

    for index in range(written, written + 70):
        writer.put(step(index))
    assert len(reader.poll()) == 64
    assert reader.lost == 6


def test_a_late_reader_does_not_count_the_rest_of_a_message_that_was_overwritten(
    make_writer: MakeWriter, open_reader: OpenReader
) -> None:
    """The first slots of the message were gone before the reader came."""
    writer = make_writer(slots=64)
    for index in range(10):
        writer.put(_numbered(index, 7))

    reader = open_reader(writer.path)

    assert reader.poll() == [_numbered(index, 7) for index in range(1, 10)]
    assert reader.lost == 0


@settings(max_examples=40)
@given(
    bursts=st.lists(st.lists(st.integers(1, 8), max_size=60), max_size=8),
)
def test_what_is_read_and_what_is_lost_add_up_however_slow_the_reader_is(
    bursts: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Messages of 1 to 8 slots against a model: a deque of the last 64 slots."""
    directory = tmp_path_factory.mktemp("model") / "rings"
    writer = RingWriter.create([directory], IDENTITY, slots=64)
    reader = RingReader(writer.path)
    in_ring: deque[tuple[int, int, int]] = deque(maxlen=64)  # message, its length, first slot
    number = head = read_up_to = lost = 0
    for burst in bursts:
        for length in burst:
            writer.put(_numbered(number, length))
            in_ring.extend([(number, length, head)] * length)
            number, head = number + 1, head + length

        unread = [entry for entry in in_ring if entry[2] >= read_up_to]
        whole = sorted({entry for entry in unread if unread.count(entry) == entry[1]})
        lost += head - read_up_to - sum(length for _, length, _ in whole)
        read_up_to = head

        assert reader.poll() == [_numbered(index, length) for index, length, _ in whole]
        assert reader.lost == lost
    reader.close()
    writer.close(END, keep=False)


def _numbered(number: int, length: int) -> EndRecord:
    record = message(length)
    return replace(record, reason=f"{number:06}" + record.reason[6:])


def test_more_slots_than_one_read_takes_are_read_in_one_poll(
    make_writer: MakeWriter, open_reader: OpenReader
) -> None:
    """Messages that lie across the borders of reads and of the ring are whole."""
    writer = make_writer(slots=4096)
    records = [_numbered(index, 1 + index % 7) for index in range(2000)]
    for record in records:
        writer.put(record)

    reader = open_reader(writer.path)
    read = reader.poll()

    assert read == records[-len(read) :]
    assert len(read) > 1000
    assert reader.lost == 0


def test_a_flipped_byte_anywhere_in_a_slot_costs_that_slot_only(
    tmp_path: Path, make_writer: MakeWriter
) -> None:
    """Never another record than the one written; its neighbours are read."""
    writer = make_writer()
    for index in range(3):
        writer.put(step(index))
    whole = writer.path.read_bytes()
    for offset in range(256):
        data = bytearray(whole)
        data[4096 + 256 + offset] ^= 1 << offset % 8
        (tmp_path / "torn").write_bytes(data)
        reader = RingReader(tmp_path / "torn")

        assert reader.poll() == [step(0), step(2)], offset
        assert reader.lost == 1
        reader.close()


def test_a_slot_that_is_half_old_and_half_new_is_never_a_record(
    tmp_path: Path, make_writer: MakeWriter
) -> None:
    """The writer is overwriting the very slot that is being read, at every byte."""
    writer = make_writer(slots=64)
    writer.put(step(0))
    old = writer.path.read_bytes()
    for index in range(1, 65):
        writer.put(step(index))
    new = writer.path.read_bytes()
    expected = {0: [step(i) for i in range(1, 64)], 256: [step(i) for i in range(1, 65)]}
    path = tmp_path / "half"
    for copied in range(257):
        begin = 4096
        torn = new[: begin + copied] + old[begin + copied : begin + 256] + new[begin + 256 :]
        path.write_bytes(torn)
        reader = RingReader(path)
        read = reader.poll()
        reader.close()

        whole = torn == new  # the last bytes of both are zeros: equal before all are copied
        assert read == expected[256 if whole else 0]
        assert reader.lost == 64 - len(read)


def test_an_incomplete_message_is_lost_and_the_next_one_read(
    tmp_path: Path, open_reader: OpenReader
) -> None:
    """A chunk missing in the middle, a chunk without a beginning, two messages mixed."""
    payload = b"x" * 240
    slots = [
        slot_bytes(0, 5, payload, 0, 3),
        slot_bytes(1, 5, payload, 2, 3),
        slot_bytes(2, 5, payload, 1, 2),
        slot_bytes(3, 5, payload, 0, 2),
        slot_bytes(4, 4, payload, 1, 2),
        slot_bytes(5, 5, payload, 0, 2),
        slot_bytes(6, 5, msgpack.encode(("finished", "", 1))),
        slot_bytes(7, 99, b"a kind of a later version"),
    ]
    (tmp_path / "ring").write_bytes(ring_bytes(8, b"".join(slots)))

    reader = open_reader(tmp_path / "ring")

    assert [type(record).__name__ for record in reader.poll()] == ["EndRecord"]
    assert reader.lost == 7


def test_a_message_that_is_published_in_parts_is_joined_over_polls(
    tmp_path: Path, open_reader: OpenReader
) -> None:
    """A head that was read half-way only delays a message."""
    text = msgpack.encode(("finished", "r" * 300, 1))
    slots = slot_bytes(0, 5, text[:240], 0, 2) + slot_bytes(1, 5, text[240:], 1, 2)
    path = tmp_path / "ring"
    path.write_bytes(ring_bytes(1, slots))
    reader = open_reader(path)
    first = reader.poll()
    path.write_bytes(ring_bytes(2, slots))
    second = reader.poll()

    assert first == []
    assert [record.reason for record in second] == ["r" * 300]  # type: ignore[union-attr]
    assert reader.lost == 0


def test_a_message_that_began_before_a_jump_is_counted_with_it(
    tmp_path: Path, open_reader: OpenReader
) -> None:
    """The slot that was read and waited for the next one is lost like those jumped over."""
    path = tmp_path / "ring"
    path.write_bytes(ring_bytes(1, slot_bytes(0, 5, b"x" * 240, 0, 2)))
    reader = open_reader(path)
    reader.poll()
    path.write_bytes(ring_bytes(1000, b""))

    assert reader.poll() == []
    assert reader.lost == 1000


class _TearingFile:
    """``os.pread`` with one load of the counters that caught a store half-way."""

    def __init__(self, wrong_head: int) -> None:
        self._loads = iter([wrong_head])
        self._real = os.pread

    def __call__(self, descriptor: int, size: int, offset: int) -> bytes:
        data = self._real(descriptor, size, offset)
        if offset == 16:
            for head in self._loads:
                return head.to_bytes(8, "little") + data[8:]
        return data


@pytest.mark.parametrize("wrong_head", [0, 2**40, 511])
def test_a_torn_head_neither_loses_nor_invents_records(
    wrong_head: int,
    make_writer: MakeWriter,
    open_reader: OpenReader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next poll has everything."""
    writer = make_writer(slots=64)
    reader = open_reader(writer.path)
    for index in range(10):
        writer.put(step(index))
    monkeypatch.setattr(os, "pread", _TearingFile(wrong_head))

    read = [*reader.poll(), *reader.poll()]

    assert read == [step(index) for index in range(10)]
    assert reader.lost == 0


def test_a_closed_reader_reads_nothing_and_can_be_closed_again(
    make_writer: MakeWriter, open_reader: OpenReader
) -> None:
    """Order of shutting down does not matter."""
    writer = make_writer()
    reader = open_reader(writer.path)
    writer.put(step(1))
    reader.close()
    reader.close()

    assert reader.poll() == []
    assert reader.writer_alive() is False
