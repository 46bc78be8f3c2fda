"""Lasting records are found by a reader that comes late, at a cost that has a bound."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ampwatch.wire.records import (
    CensusRecord,
    FactsRecord,
    FindingRecord,
    OptimizerRecord,
    Record,
    SamplingRecord,
    SensorFailureRecord,
    WindowRecord,
)
from ampwatch.wire.ring.layout import RecordKind
from ampwatch.wire.ring.repeats import Message, Repeats
from tests.wire.ring.conftest import MakeWriter, OpenReader
from tests.wire.ring.samples import (
    FACTS,
    FAILURE,
    census,
    finding,
    message,
    optimizer,
    ranges,
    sampling,
    slots_of,
    step,
    window,
)


def test_a_late_reader_finds_the_newest_of_everything_that_lasts(
    make_writer: MakeWriter, open_reader: OpenReader
) -> None:
    """Thousands of steps later the facts, each finding and each optimizer are still there."""
    writer = make_writer(slots=256)
    writer.put(FactsRecord({"torch": "old"}))
    writer.put(FACTS)
    for where in ("a", "b", "c"):
        writer.put(finding(where, count=1))
    writer.put(finding("b", count=2))
    writer.put(optimizer(0, steps=4))
    writer.put(optimizer(1, steps=9))
    writer.put(sampling(3))
    writer.put(sampling(4))
    writer.put(replace(FAILURE, errors=1))
    writer.put(replace(FAILURE, sensor="ranges"))
    writer.put(FAILURE)
    writer.put(census())
    writer.put(window())
    for index in range(5000):
        writer.put(step(index))
        if index % 97 == 0:
            late = open_reader(writer.path).poll()

            assert _lasting(late) == {
                "facts": FACTS,
                "a": finding("a"),
                "b": finding("b", count=2),
                "c": finding("c"),
                0: optimizer(0, steps=4),
                1: optimizer(1, steps=9),
                "sampling": sampling(4),
                "failed scale": FAILURE,
                "failed ranges": replace(FAILURE, sensor="ranges"),
                CensusRecord: census(),
                WindowRecord: window(),
            }


def _lasting(records: list[Record]) -> dict[object, Record]:
    newest: dict[object, Record] = {}
    for record in records:
        if isinstance(record, FactsRecord):
            newest["facts"] = record
        elif isinstance(record, FindingRecord):
            newest[record.finding.where] = record
        elif isinstance(record, OptimizerRecord):
            newest[record.index] = record
        elif isinstance(record, SamplingRecord):
            newest["sampling"] = record
        elif isinstance(record, SensorFailureRecord):
            newest[f"failed {record.sensor}"] = record
        elif isinstance(record, CensusRecord | WindowRecord):
            newest[type(record)] = record
    return newest


@settings(max_examples=50)
@given(st.lists(st.integers(0, 12), max_size=400), st.sampled_from([64, 128, 512]))
def test_no_remembered_message_is_ever_overwritten(chunks: list[int], slots: int) -> None:
    """Whatever is put: the newest copy of what is remembered lies within the ring."""
    repeats = Repeats(slots)
    head = 0
    copies: dict[str, int] = {}
    for index, wanted in enumerate(chunks):
        size = min(max(wanted, 1), slots // 8)
        repeated = 0
        while repeated < size and (due := repeats.due(head)):
            copies[due.payload.decode()] = head
            head += due.chunks
            repeated += due.chunks
        record: Record = step(index) if wanted == 0 else finding(str(wanted))
        key = "" if wanted == 0 else str(wanted)
        repeats.remember(record, Message(RecordKind.FINDING, key.encode(), size), head)
        copies[key] = head
        head += size

        remembered = {m.message.payload.decode() for m in repeats._newest.values()}
        assert all(head - copies[name] <= slots for name in remembered)


def test_repeats_take_at_most_as_many_slots_as_what_is_put_and_one_message(
    make_writer: MakeWriter,
) -> None:
    """No ``put`` pays for all that lasts at once."""
    writer = make_writer(slots=1024)
    for index in range(30):
        writer.put(finding(str(index)))
    longest = slots_of([finding("0")])

    most = 0
    for index in range(5000):
        before = writer._head
        writer.put(step(index))
        most = max(most, writer._head - before)

    assert 1 < most <= 1 + longest


def test_what_is_remembered_has_a_bound_and_the_first_stay(make_writer: MakeWriter) -> None:
    """Ten thousand findings neither grow the process nor push out the root causes."""
    repeats = Repeats(8192)
    for index in range(10_000):
        record = finding(str(index))
        repeats.remember(record, Message(RecordKind.FINDING, b"x" * 1000, 5), index)

    remembered = [m.message for m in repeats._newest.values()]
    assert sum(m.chunks for m in remembered) <= 8192 // 8
    assert finding("0").finding.key in repeats._newest


def test_a_finding_that_changes_takes_no_more_room_than_one() -> None:
    """Counting up for the whole run, it does not push the next finding out."""
    repeats = Repeats(64)
    for count in range(100):
        repeats.remember(finding("a", count), Message(RecordKind.FINDING, b"", 4), count)
    repeats.remember(finding("b"), Message(RecordKind.FINDING, b"", 4), 100)

    assert list(repeats._newest) == [finding("a").finding.key, finding("b").finding.key]


@pytest.mark.parametrize("record", [step(1), ranges(), message(1)])
def test_what_passes_by_is_not_repeated(record: Record) -> None:
    """A step belongs to its moment, so do ranges; an end is the last record anyway."""
    repeats = Repeats(64)
    repeats.remember(record, Message(RecordKind.STEP, b"", 1), 0)

    assert repeats.due(10_000) is None
