"""Findings that a real ring repeats, as the daemon reads them."""

from pathlib import Path

import pytest

from ampwatch.host.fleet import Fleet
from ampwatch.settings import Settings
from ampwatch.wire.ring import RingReader, RingWriter
from tests.workshop.clocks import SECOND, START, Clock
from tests.workshop.records import end, finding, identity, step

STEPS = 2000
KEY = "scale_collapse@optimizer:0"


class Watched:
    """A ring that wraps many times, a reader that keeps up, and the fleet it feeds."""

    def __init__(self, writer: RingWriter) -> None:
        self.writer = writer
        self.fleet = Fleet(Settings(), Clock(START))
        self.reader = RingReader(writer.path)
        self.num_findings = 0

    def look(self) -> None:
        records = self.reader.poll()
        self.num_findings += sum(hasattr(record, "finding") for record in records)
        self.fleet.apply("a", self.reader.identity, records, alive=True, lost=0, dropped=0)

    def last_seen(self) -> float:
        (rank,) = self.fleet.ranks()
        return rank.finding_totals.last_seen_ns(KEY) / SECOND - START


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(RingWriter.create([tmp_path], identity(), slots=128))


def test_a_finding_that_is_over_grows_old_however_often_the_ring_repeats_it(
    watched: Watched,
) -> None:
    """An alert on it stops; when it is told again with a new count, it is fresh."""
    for index in range(STEPS):
        watched.writer.put(step(index))
        if index == 5:
            watched.writer.put(finding(first_step=4, last_step=5, count=2))
        watched.look()

    assert watched.num_findings > STEPS // 128
    assert watched.last_seen() == 6

    watched.writer.put(finding(first_step=4, last_step=STEPS - 1, count=3))
    watched.look()
    watched.reader.close()
    watched.writer.close(end(), keep=False)

    assert watched.last_seen() == STEPS
