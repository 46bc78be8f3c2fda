"""What a rank knows of the others of its machine: what their rings say, and nothing of other jobs."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from torch import nn

from ampwatch.diagnosis.news import News, Reason
from ampwatch.training import other_ranks
from ampwatch.training.model.names import Names
from ampwatch.training.other_ranks import OtherRanks, Shards
from ampwatch.wire.records import CulpritRecord, Severity
from ampwatch.wire.ring.layout import RecordKind
from tests.workshop.ranks import Rank
from tests.workshop.records import checksum, culprit, finding, identity, step

KINDS = RecordKind.FINDING, RecordKind.CHECKSUM, RecordKind.CULPRIT
ME = identity(run="gpt", rank=0, local_rank=0, world_size=8)


@pytest.fixture
def rings(own_places: Path) -> Path:
    return own_places / "rings"


@pytest.fixture
def others(rings: Path) -> OtherRanks:
    return OtherRanks(ME, *KINDS, directories=[rings, rings / "none"])


def news(reason: Reason = Reason.MADE, **changes: object) -> News:
    found = finding(**changes).finding  # type: ignore[arg-type]
    return News(found, reason, found.severity, found)


def test_a_rank_holds_what_its_ring_says(rings: Path, others: OtherRanks) -> None:
    """Of each finding the newest, among whatever else it has written; what comes later is read later."""
    ranks = [Rank(rings, number) for number in (3, 2)]
    for rank in ranks:
        rank.put(step(1), finding(severity=Severity.WARNING), step(2))

    assert others.holders(news(severity=Severity.WARNING)) == [2, 3]
    assert others.holders(news(severity=Severity.CRITICAL)) == []
    assert others.holders(news(where="optimizer:1")) == []
    ranks[0].put(finding(severity=Severity.CRITICAL))
    assert others.holders(news(severity=Severity.CRITICAL)) == [3]
    ranks[0].put(finding(severity=Severity.INFO))
    assert others.holders(news(severity=Severity.WARNING)) == [2]


def test_what_is_gone_or_has_another_cause_is_not_the_same(rings: Path, others: OtherRanks) -> None:
    """A finding that is over there says nothing of one that is made here."""
    rank = Rank(rings, 1)
    rank.put(finding(evidence={"gone_step": 5.0}), finding(where="a", root=False, caused_by="x@b"))

    assert others.holders(news()) == []
    assert others.holders(news(where="a")) == [1]
    assert others.holders(news(Reason.EXPLAINED, where="a", caused_by="x@b")) == [1]
    assert others.holders(news(Reason.EXPLAINED, where="a", caused_by="x@c")) == []


def test_a_rank_that_was_killed_does_not_count_and_one_that_has_ended_does(
    rings: Path, others: OtherRanks
) -> None:
    """It has written its line when it closed; the ring may be gone by then."""
    dead, ended = Rank(rings, 1), Rank(rings, 2)
    for rank in (dead, ended):
        rank.put(finding())
    assert others.holders(news()) == [1, 2]
    dead.die()
    ended.end()
    ended.path.unlink()

    assert others.holders(news()) == [2]


def test_an_earlier_start_of_the_job_does_not_count(rings: Path, others: OtherRanks) -> None:
    """Its ranks were killed, or had ended before this one began; rings of them may lie there for a day."""
    dead, ended, ended_since = (Rank(rings, number) for number in (1, 2, 3))
    for rank in (dead, ended, ended_since):
        rank.put(finding())
    dead.die()
    ended.end(ME.started_ns - 1)
    ended_since.end(time.time_ns())

    assert others.holders(news()) == [3]


@pytest.mark.parametrize(
    "who", [{"run": "bert"}, {"world_size": 4}, {"host": "elsewhere"}, {"rank": 0}]
)
def test_ranks_of_other_runs_do_not_count(
    who: dict[str, object], rings: Path, others: OtherRanks
) -> None:
    """Nor does one of this number."""
    Rank(rings, **{"rank": 1, **who}).put(finding())  # type: ignore[arg-type]

    assert others.holders(news()) == []


def test_what_another_launcher_has_started_is_another_job(
    rings: Path, others: OtherRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs of one name at the same time; and where nobody can say who has started a rank."""
    Rank(rings, 1).put(finding())
    monkeypatch.setattr(other_ranks, "_launcher_of", lambda _: -1)

    assert others.holders(news()) == []


def test_a_launcher_is_known_whatever_it_calls_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of a process may be any bytes, also such as stand around it in /proc."""
    code = "open('/proc/self/comm', 'wb').write(b'\\xff) Z 1'); import time; time.sleep(60)"
    child = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", code])
    try:
        assert other_ranks._launcher_of(child) == os.getpid()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert other_ranks._launcher_of(child) == -1


def test_whatever_lies_there_is_no_error(rings: Path, others: OtherRanks) -> None:
    """And a ring of this process is not opened, as its lock would be lost with that."""
    (rings / "a-1-1-0.ring").write_bytes(b"AMPWATCH" * 1000)
    (rings / "b-1-1-0.ring").mkdir()
    os.mkfifo(rings / "c-1-1-0.ring")
    (rings / "d-1-1-0.ring").symlink_to(rings)
    (rings / b"\xff-1-1-0.ring".decode(errors="surrogateescape")).write_bytes(b"")
    mine = Rank(rings, 1)
    mine.put(finding())
    mine.path.rename(rings / f"gpt-1-{os.getpid()}-00.ring")

    assert others.holders(news()) == []
    assert list(others._rings.values()) == [None] * 6


def test_a_ring_that_is_overwritten_or_cut_while_it_is_read_is_no_error(
    rings: Path, others: OtherRanks
) -> None:
    """Of thousands of findings those of now are there."""
    rank = Rank(rings, 1)
    for number in range(1000):
        rank.put(finding(where=f"{number}"))
        if number % 300 == 0:
            assert others.holders(news(where=f"{number}")) == [1]
    assert others.holders(news(where="999")) == [1]
    os.truncate(rank.path, 5000)
    rank.put(step(1))

    assert others.holders(news(where="999")) == [1]


def test_the_newest_checks_of_each_rank_are_known(rings: Path, others: OtherRanks) -> None:
    """However many it has made."""
    ranks = Rank(rings, 1), Rank(rings, 2)
    for number in range(6):
        ranks[0].put(checksum(number))
    ranks[1].put(step(1))

    assert others.checks() == {1: [checksum(number) for number in range(2, 6)]}


def test_the_parameter_of_another_rank_is_known_by_the_skips(
    rings: Path, others: OtherRanks
) -> None:
    """A gradient that was infinite a thousand steps ago explains nothing."""
    ranks = Rank(rings, 2), Rank(rings, 1)
    assert others.culprit(7) == ("", [])
    for rank in ranks:
        rank.put(culprit(7, "1.weight"))

    assert others.culprit(7) == ("1.weight", [1, 2])
    ranks[0].put(culprit(1007, "0.weight"))
    assert others.culprit(7) == ("1.weight", [1])
    assert others.culprit(1007) == ("0.weight", [2])


def test_nothing_stays_open(rings: Path, others: OtherRanks) -> None:
    """And nothing is read any more."""
    elsewhere = Rank(rings, 1)
    before = [*Path("/proc/self/fd").iterdir()]
    elsewhere.put(finding())
    assert others.holders(news()) == [1]
    elsewhere.end()
    others.close()

    assert len([*Path("/proc/self/fd").iterdir()]) < len(before)
    assert others.holders(news()) == []


@pytest.mark.parametrize("is_sharded", [True, False])
def test_a_gradient_that_every_rank_has_is_not_noted(*, is_sharded: bool) -> None:
    """As in DDP: nobody would ask."""
    noted: list[CulpritRecord] = []
    model = nn.Linear(2, 2)
    if is_sharded:
        model.weight._fsdp_flattened = True  # type: ignore[assignment]
    Shards(OtherRanks(ME), Names([model]), noted.append).note("weight", 7)

    assert noted == [culprit(7, "weight")] * is_sharded
