"""Findings in the log: of the ranks of a machine that find the same, one writes; its thread."""

from __future__ import annotations

import logging
import os
import re
import threading
from _thread import start_new_thread
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ampwatch.diagnosis.news import News, Reason
from ampwatch.training import courier
from ampwatch.training.courier import Courier
from ampwatch.training.finding_log import FindingLog
from ampwatch.training.other_ranks import OtherRanks
from ampwatch.wire.records import Finding, FindingRecord, Severity
from ampwatch.wire.ring.layout import RecordKind
from tests.workshop.ranks import Rank
from tests.workshop.records import identity

RANKS = 8


def collapse(
    reason: Reason = Reason.MADE,
    severity: Severity = Severity.WARNING,
    since: Severity | None = None,
    where: str = "optimizer:0",
) -> News:
    finding = Finding("scale_collapse", severity, where, "It broke", "Mend it", last_step=7)
    return News(finding, reason, severity, finding, since)


class Machine:
    """Ranks whose time comes when the test says so."""

    def __init__(self, directory: Path) -> None:
        self.turns = [threading.Event() for _ in range(RANKS)]
        self.ranks = [Rank(directory, rank) for rank in range(RANKS)]
        self.logs = [self._log(directory, rank) for rank in self.ranks]

    def _log(self, directory: Path, rank: Rank) -> FindingLog:
        others = OtherRanks(rank.identity, RecordKind.FINDING, directories=[directory])
        wait = self.turns[rank.identity.rank].wait
        return FindingLog(rank.identity, others=others, wait=lambda _: wait(60))

    def find(self, news: News, *ranks: int) -> None:
        """Have ranks find something, in this order."""
        for rank in ranks:
            self.ranks[rank].put(FindingRecord(news.finding))
            self.logs[rank].notify(news)

    def close(self, *ranks: int) -> None:
        for rank in ranks or range(RANKS):
            self.turns[rank].set()
            self.logs[rank].close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "rings")
    yield made
    made.close()


def ranks_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = (
        re.search(r"run gpt (ranks? [\d, -]+?)(?: of \d+)? step", line) for line in caplog.messages
    )
    return [match[1] for match in found if match]


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="ampwatch")


def test_what_a_rank_alone_finds_is_its_own_line(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside what all of them find, which is one line for all."""
    machine.find(collapse(), *reversed(range(RANKS)))
    machine.find(collapse(where="optimizer:1"), 3)
    machine.close()

    assert ranks_of(caplog) == ["ranks 0-7", "rank 3"]
    assert "run gpt rank 3 of 8 step 7: scale_collapse in optimizer 1" in caplog.messages[1]


def test_a_rank_that_dies_leaves_its_line_to_the_next(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """It has found it, and its time never comes."""
    machine.find(collapse(), 0, 1, 2)
    machine.ranks[0].die()
    machine.close(1, 2)

    assert ranks_of(caplog) == ["ranks 1-2"]


def test_a_lower_rank_that_finds_it_later_writes_as_well_and_a_higher_one_does_not(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody remembers what was written: better twice than never."""
    machine.find(collapse(), 5)
    machine.close(5)
    machine.find(collapse(), 0, 1, 7)
    machine.close(7, 0, 1)

    assert ranks_of(caplog) == ["rank 5", "ranks 0-1, 5, 7"]


def test_a_rank_that_ends_first_has_written_it(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether its ring is still there or not."""
    machine.find(collapse(), 0, 1)
    for _ in range(1000):
        if any(machine.logs[1]._others._rings.values()):  # type: ignore[union-attr] # seen when it was found
            break
        threading.Event().wait(0.01)
    machine.close(0)
    machine.ranks[0].end()
    machine.ranks[0].path.unlink()
    machine.close(1)

    assert ranks_of(caplog) == ["ranks 0-1"]


def test_a_finding_that_becomes_worse_is_one_line_more(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """And of one that is explained by then, one says so."""
    worse = collapse(Reason.WORSE, Severity.CRITICAL, Severity.WARNING)
    explained = collapse(Reason.EXPLAINED, Severity.CRITICAL)
    explained.finding.caused_by = "forward_overflow@a"
    for news in (collapse(), worse, explained):
        machine.find(news, *range(RANKS))
    machine.close()

    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR", "INFO"]
    assert ranks_of(caplog) == ["ranks 0-7"] * 3


def test_a_line_says_what_was_so_when_it_was_found(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """A finding goes on changing while its line waits."""
    news = collapse()
    machine.find(news, 0)
    news.finding.last_step, news.finding.severity = 900, Severity.CRITICAL
    machine.close()

    assert "WARNING run gpt rank 0 of 8 step 7: " in caplog.messages[0]


def test_a_rank_without_a_ring_writes_at_once_and_has_no_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As with serve=False: each of several ranks writes."""
    log = FindingLog(identity(run="gpt", rank=1, world_size=8))
    log.notify(collapse())

    assert "run gpt rank 1 of 8 step 7: scale_collapse" in caplog.messages[0]
    assert not [t for t in threading.enumerate() if t.name == "ampwatch-log"]


def test_the_only_rank_writes_at_once_and_has_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing to agree on."""
    log = FindingLog(identity(run="gpt", world_size=1))
    log.notify(collapse())

    assert caplog.messages[0].startswith("ampwatch WARNING run gpt step 7: scale_collapse in")
    assert not [t for t in threading.enumerate() if t.name == "ampwatch-log"]


@pytest.mark.parametrize(
    ("news", "expected"),
    [
        (collapse(severity=Severity.INFO), 0),
        (collapse(Reason.CHANGED), 0),
        (collapse(Reason.EXPLAINED, Severity.CRITICAL), 1),
        (collapse(Reason.WORSE, since=Severity.INFO), 1),
        # The story has become worse by a symptom, whose own line names this root.
        (collapse(Reason.WORSE, since=Severity.WARNING), 0),
    ],
)
def test_only_what_a_reader_has_to_know_is_a_line(
    news: News, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A log is read by people."""
    FindingLog(identity(world_size=1)).notify(news)

    assert len(caplog.messages) == expected


def test_a_handler_that_raises_costs_the_line_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Log handlers are the user's; the disk has room again later."""
    lines: list[str] = []

    class Full(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            if len(lines) == 1:
                raise OSError(28, "No space left on device")

    monkeypatch.setattr(logging.getLogger("ampwatch"), "handlers", [Full()])
    log = FindingLog(identity(world_size=1))
    log.notify(collapse())
    log.notify(collapse())
    log.close()

    assert ["scale_collapse" in line for line in lines] == [True, True]
    assert caplog.messages == lines[1:]


def test_a_fork_writes_at_once_and_waits_for_nothing(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """It has inherited the monitor and not its thread, and has never been a rank."""
    machine.find(collapse(), 1)
    if not (child := os.fork()):
        with suppress(BaseException):
            caplog.clear()
            machine.logs[1].notify(collapse())
            machine.logs[1].close()
            os._exit(len(caplog.messages))
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_a_thread_that_has_no_memory_to_begin_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It dies before it says that it runs. What is put is counted, and the end does not wait either."""
    got: list[int] = []
    told: list[object] = []
    done = threading.Event()
    sender = Courier("unborn", got.append, 8)

    def put_and_close() -> None:
        told.extend([sender.put(1), sender.put(2), sender.dropped, sender.close(60.0)])
        done.set()

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "_bootstrap", lambda _: None)
        patched.setattr(courier, "PATIENCE_S", 0.01, raising=False)
        start_new_thread(put_and_close, ())
        assert done.wait(20)
    assert told == [False, False, 2, None]

    sender.open()
    assert sender.put(3)
    assert sender.close(60.0) is None
    assert got == [3]
