"""Real processes: killed, forked, faster than the reader; and who is alive, by the kernel's word."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ampwatch.wire.records import FindingRecord, OptimizerRecord, Record, StepRecord
from tests.wire.ring.conftest import MakeWriter, OpenReader
from tests.wire.ring.samples import (
    FACTS,
    finding,
    heard,
    optimizer,
    program,
    slots_of,
    step,
)

ENDLESS = """
writer = create(slots=1024)
say(writer.path)
writer.put(FACTS)
index = 0
while True:
    writer.put(step(index))
    writer.put(optimizer(index % 3, steps=index))
    if index % 5 == 0:
        writer.put(finding(str(index % 4), count=index))
    index += 1
"""


def assert_intact_and_in_order(records: list[Record]) -> None:
    """Each record is one that the program put, and steps never go back."""
    steps = [record.step for record in records if isinstance(record, StepRecord)]
    assert steps == sorted(set(steps))
    for record in records:
        if isinstance(record, StepRecord):
            assert record == step(record.step)
        elif isinstance(record, OptimizerRecord):
            assert record == optimizer(record.index, steps=record.step)
        elif isinstance(record, FindingRecord):
            assert record == finding(record.finding.where, count=record.finding.count)
        else:
            assert record == FACTS


def test_a_message_cut_short_by_a_kill_was_never_there(
    directory: Path, open_reader: OpenReader
) -> None:
    """Killed between the second and the third slot of a message of three."""
    body = """
import signal
from ampwatch.wire.ring import layout
writer = create()
say(writer.path)
writer.put(step(1))
pack = layout.pack_slot_into
def pack_and_die(slot, sequence, kind, chunk, *rest):
    if chunk == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    pack(slot, sequence, kind, chunk, *rest)
layout.pack_slot_into = pack_and_die
writer.put(message(3))
"""
    with program(directory, body) as process:
        path = Path(heard(process))
        assert process.wait(60) == -signal.SIGKILL

    reader = open_reader(path)

    assert reader.poll() == [step(1)]
    assert reader.lost == 0


@pytest.mark.nightly
def test_a_reader_that_is_lapped_again_and_again_reads_only_what_was_written(
    directory: Path, open_reader: OpenReader
) -> None:
    """The writer overwrites the slots while they are being read."""
    with program(directory, ENDLESS) as process:
        reader = open_reader(Path(heard(process)))
        records: list[Record] = []
        polls = 0
        while reader.lost < 20_000 and polls < 100_000:
            assert process.poll() is None
            records += reader.poll()
            polls += 1
            if polls % 7 == 0:  # now and then more than a lap behind
                behind = reader._published() + 2000
                while reader._published() < behind:
                    assert process.poll() is None
        process.kill()
        process.wait()
    records += reader.poll()

    assert_intact_and_in_order(records)
    assert reader.lost >= 20_000
    assert reader.lost + slots_of(records) == reader._published()


def test_a_child_that_outlives_the_killed_writer_does_not_keep_it_alive(
    directory: Path, open_reader: OpenReader
) -> None:
    """DataLoader workers often do; a lock of the open file would count them in."""
    body = """
writer = create()
if os.fork() == 0:
    say(os.getpid())
    sys.stdin.read()
    os._exit(0)
say(writer.path)
import signal
signal.pause()
"""
    with program(directory, body) as process:
        said = [heard(process), heard(process)]
        child = int(next(word for word in said if word.isdigit()))
        reader = open_reader(Path(next(word for word in said if not word.isdigit())))
        before = reader.writer_alive()
        process.kill()
        process.wait()

        os.kill(child, 0)  # it lives
        assert before
        assert not reader.writer_alive()


def test_reading_a_ring_in_the_process_that_writes_it_does_no_harm(
    make_writer: MakeWriter, open_reader: OpenReader, directory: Path
) -> None:
    """A notebook may look into its own ring: other processes still see the writer alive."""
    writer = make_writer()
    reader = open_reader(writer.path)
    alive_here = reader.writer_alive()
    reader.close()

    body = "say([RingReader(path).writer_alive() for path in Path(sys.argv[1]).iterdir()])"
    with program(directory, body) as process:
        alive_there = heard(process)

    assert alive_here
    assert alive_there == "[True]"
