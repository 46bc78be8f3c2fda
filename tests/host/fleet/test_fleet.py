"""Tests of which ranks are shown, and under which labels."""

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampwatch.host.fleet import Fleet, RankView
from ampwatch.settings import Settings
from ampwatch.wire.records import RunIdentity, RunState
from tests.workshop.clocks import SECOND, START, Clock
from tests.workshop.fleets import put
from tests.workshop.records import end, finding, identity, step


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fleet(clock: Clock) -> Fleet:
    return Fleet(Settings(grace_seconds=600.0), clock)


def labels(fleet: Fleet) -> list[tuple[str, int]]:
    return [(rank.run, rank.identity.rank) for rank in fleet.ranks()]


def newest_step(rank: RankView) -> int:
    assert rank.newest is not None
    return rank.newest.step


def later(seconds: int, **changes: Any) -> RunIdentity:
    return identity(started_ns=(START + seconds) * SECOND, pid=4711 + seconds, **changes)


def test_ranks_come_by_run_and_rank(fleet: Fleet) -> None:
    """Rank 10 comes after rank 9, whatever the order of the rings."""
    for rank in (10, 9):
        put(fleet, f"b{rank}", identity(run="b", rank=rank), [])
    put(fleet, "a", identity(run="a"), [])

    assert labels(fleet) == [("a", 0), ("b", 9), ("b", 10)]


def test_two_live_runs_of_one_name_are_kept_apart(fleet: Fleet) -> None:
    """The second gets ``~2``, the third ``~3``, on every rank alike; the first keeps its name."""
    for number in range(3):
        for rank in (0, 1):
            put(fleet, f"{number}-{rank}", later(number, rank=rank), [])

    assert labels(fleet) == [(run, rank) for run in ("gpt", "gpt~2", "gpt~3") for rank in (0, 1)]


def test_a_job_that_has_ended_gives_its_label_to_the_next(fleet: Fleet) -> None:
    """A daemon that was started after its end, and never knew it, says the same."""
    restarted = Fleet(Settings(), Clock())
    for key in ("1", "2", "3"):
        put(fleet, key, later(int(key)), [])
    put(fleet, "1", later(1), [], alive=False)
    for key in ("3", "2"):
        put(restarted, key, later(int(key)), [])

    for daemon in (fleet, restarted):
        assert [(r.run, r.identity.pid) for r in daemon.ranks()] == [
            ("gpt", 4713),
            ("gpt~2", 4714),
        ]
    assert fleet.expired() == ["1"]


SMALL_JOB = {"small": later(1, world_size=1)}
LARGE_JOB = {f"large{rank}": later(2 + rank, rank=rank, world_size=4) for rank in range(4)}
SECOND_LARGE_JOB = {f"second{rank}": later(60 + rank, rank=rank, world_size=4) for rank in range(4)}


@given(st.permutations(list((SMALL_JOB | LARGE_JOB | SECOND_LARGE_JOB).items())))
def test_a_label_belongs_to_a_whole_job(rings: list[tuple[str, RunIdentity]]) -> None:
    """Jobs of one name never mix, whatever their sizes and the order in which rings are found."""
    fleet = Fleet(Settings(), Clock())
    for key, who in rings:
        put(fleet, key, who, [])

    assert [(r.run, r.identity.pid - 4711) for r in fleet.ranks()] == [
        ("gpt", 1),
        *(("gpt~2", 2 + rank) for rank in range(4)),
        *(("gpt~3", 60 + rank) for rank in range(4)),
    ]


def test_a_dead_rank_is_shown_beside_the_others_of_its_job(fleet: Fleet) -> None:
    """The job lives on, so nobody takes its place: that it failed is the news."""
    for rank in (0, 1):
        put(fleet, f"first{rank}", later(1, rank=rank), [])
        put(fleet, f"second{rank}", later(2, rank=rank), [])
    put(fleet, "first1", later(1, rank=1), [], alive=False)

    shown = [(r.run, r.identity.rank, r.state is RunState.FAILED) for r in fleet.ranks()]

    assert shown == [
        ("gpt", 0, False),
        ("gpt", 1, True),
        ("gpt~2", 0, False),
        ("gpt~2", 1, False),
    ]


def test_ranks_that_start_long_after_one_another_are_no_job(fleet: Fleet) -> None:
    """With NCCL the ranks of a job wait ten minutes for each other, and no longer."""
    put(fleet, "0", later(0), [])
    put(fleet, "1", later(600, rank=1), [])
    assert labels(fleet) == [("gpt", 0), ("gpt", 1)]

    put(fleet, "1", later(601, rank=1), [])
    assert labels(fleet) == [("gpt", 0), ("gpt~2", 1)]


def test_of_two_dead_jobs_the_last_one_to_live_is_shown(fleet: Fleet) -> None:
    """A daemon that starts the day after finds both; one that ended inside the other hides nothing."""
    put(fleet, "old", later(1), [step(2)], alive=False)
    put(fleet, "new", later(5), [step(9)], alive=False)
    put(fleet, "inside", later(6), [step(6)], alive=False)

    assert [(r.run, newest_step(r)) for r in fleet.ranks()] == [("gpt", 9), ("gpt~2", 6)]


def test_a_restarted_run_takes_the_place_of_its_dead_predecessor(fleet: Fleet) -> None:
    """The old ring can go at once, and reading it again does not bring it back."""
    put(fleet, "old", later(1), [step(5)], alive=False)
    put(fleet, "new", later(2), [step(0)])
    put(fleet, "old", later(1), [], alive=False)

    assert [(rank.run, newest_step(rank)) for rank in fleet.ranks()] == [("gpt", 0)]
    assert fleet.expired() == ["old"]


def test_a_run_that_ended_beside_an_older_live_one_is_shown(fleet: Fleet) -> None:
    """Only a successor replaces a dead run."""
    put(fleet, "long", later(1), [])
    put(fleet, "short", later(2), [end()], alive=False)

    assert labels(fleet) == [("gpt", 0), ("gpt~2", 0)]


def test_names_that_differ_only_in_what_cannot_be_encoded_are_kept_apart(fleet: Fleet) -> None:
    """Two series never get the same labels, whatever a damaged ring says."""
    for key, run in enumerate(("a\ud800", "a\udc00", "a?~2", "a?")):
        put(fleet, str(key), identity(run=run), [])

    assert labels(fleet) == [("a?", 0), ("a?-2", 0), ("a?~2", 0), ("a?~3", 0)]


ALICE, MALLORY = 71001, 71002
"""Users without an entry in the list of users."""


def test_an_earlier_start_under_the_name_of_another_user_takes_nothing(
    fleet: Fleet, clock: Clock
) -> None:
    """When it began is the ring's own word; whose it is, is not."""
    put(fleet, "hers", later(100, run="prod"), [step(7)], uid=ALICE)
    put(fleet, "forged", later(0, run="prod"), [step(9)], uid=MALLORY)
    both = {rank.run: (newest_step(rank), rank.user) for rank in fleet.ranks()}
    put(fleet, "hers", later(100, run="prod"), [end()], alive=False, uid=ALICE)
    clock.now += 601
    later_on = labels(fleet)
    put(fleet, "again", later(2000, run="prod"), [step(1)], uid=ALICE)

    assert both == {"prod": (7, "71001"), f"prod~uid{MALLORY}": (9, "71002")}
    assert later_on == [(f"prod~uid{MALLORY}", 0)]
    assert labels(fleet) == [("prod", 0), (f"prod~uid{MALLORY}", 0)]


def test_a_ring_cannot_choose_what_the_daemon_appends(fleet: Fleet) -> None:
    """Neither the label of a second job, nor that of another user."""
    put(fleet, "a", later(0, run="prod~2"), [], uid=MALLORY)
    put(fleet, "b", later(0, run=f"prod~uid{MALLORY}"), [], uid=ALICE)
    for n in (1, 2):
        put(fleet, f"hers{n}", later(n, run="prod"), [], uid=ALICE)
        put(fleet, f"his{n}", later(n, run="prod"), [], uid=MALLORY)

    assert {(view.run, view.uid) for view in fleet.ranks()} == {
        ("prod-2", MALLORY),
        (f"prod-uid{MALLORY}", ALICE),
        ("prod", ALICE),
        ("prod~2", ALICE),
        (f"prod~uid{MALLORY}", MALLORY),
        (f"prod~uid{MALLORY}~2", MALLORY),
    }


def test_ranks_of_two_users_are_no_job(fleet: Fleet) -> None:
    """A ring that claims to be rank 1 of somebody's job is not among its ranks."""
    put(fleet, "0", identity(run="prod", rank=0, world_size=2), [], uid=ALICE)
    put(fleet, "1", identity(run="prod", rank=1, world_size=2), [], uid=MALLORY)

    assert labels(fleet) == [("prod", 0), (f"prod~uid{MALLORY}", 1)]


def test_a_ring_that_changes_hands_is_another_ring(fleet: Fleet) -> None:
    """The same path and the same words, written by another user."""
    put(fleet, "0", identity(run="prod"), [step(5)], uid=ALICE)
    put(fleet, "0", identity(run="prod"), [], uid=MALLORY)
    (rank,) = fleet.ranks()

    assert (rank.run, rank.newest) == (f"prod~uid{MALLORY}", None)


def test_a_run_that_has_ended_is_shown_for_the_grace_time(fleet: Fleet, clock: Clock) -> None:
    """Counted from when the end was noticed; then its ring can be forgotten."""
    put(fleet, "a", identity(), [step(0)])
    clock.now += 1000
    put(fleet, "a", identity(), [end()], alive=False)

    clock.now += 600
    put(fleet, "a", identity(), [], alive=False)
    assert [rank.state for rank in fleet.ranks()] == [RunState.FINISHED]
    assert fleet.expired() == []

    clock.now += 1
    put(fleet, "a", identity(), [], alive=False)
    assert fleet.ranks() == []
    assert fleet.expired() == ["a"]

    fleet.forget("a")
    assert fleet.expired() == []


def test_another_identity_under_the_same_path_is_another_ring(fleet: Fleet) -> None:
    """Nothing of the old one is left, not even that it was replaced."""
    put(fleet, "a", later(1), [step(7), finding()], alive=False)
    put(fleet, "b", later(2), [end()], alive=False)
    put(fleet, "a", later(3), [step(0)])

    (rank,) = fleet.ranks()

    assert (rank.run, newest_step(rank), rank.findings) == ("gpt", 0, {})


def test_a_problem_lasts_until_the_ring_can_be_read_or_is_gone(fleet: Fleet) -> None:
    """The text is kept by path."""
    put(fleet, "known", identity(), [])
    for key in ("known", "new", "gone", "other"):
        fleet.note_problem(key, f"{key} has layout 9")
    put(fleet, "known", identity(), [])
    put(fleet, "new", identity(rank=1), [])
    fleet.forget("gone")

    assert fleet.problems == {"other": "other has layout 9"}


class Watched:
    """A lock that tells that a thread is about to wait for it."""

    def __init__(self, lock: Any, asked: threading.Event) -> None:
        self._lock, self._asked = lock, asked

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self._asked.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_reader_that_holds_the_lock_sees_no_change(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is held, records wait; for the thread that holds it, the fleet stays usable."""
    put(fleet, "a", identity(), [step(0)])
    asked = threading.Event()
    monkeypatch.setattr(fleet, "lock", Watched(fleet.lock, asked))
    writer = threading.Thread(target=put, args=(fleet, "a", identity(), [step(1)]))

    with fleet.lock:
        writer.start()
        assert asked.wait(60)
        (rank,) = fleet.ranks()
        during = newest_step(rank)
    writer.join()

    assert (during, newest_step(rank)) == (0, 1)
