"""Ranks of one job of which one makes the others wait, and ranks of which none does."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from ampwatch.diagnosis.time.kinds import STRAGGLER
from ampwatch.host.fleet import Fleet
from ampwatch.settings import Settings
from ampwatch.wire.records import Finding, Phases, Record, StepPhase
from tests.workshop.clocks import SECOND, START, Clock
from tests.workshop.records import device_phases, identity, step

OWN = {"forward": 0.1, "unscale_and_clip": 0.01, "optimizer": 0.04, "rest": 0.01}
BACKWARD = 0.2
STEPS = 400


def phases(own: dict[str, float], shared: float) -> Phases:
    """Phases of a rank that does ``own`` by itself, and is in the shared backward for a time."""
    of = {StepPhase[name.upper()]: seconds for name, seconds in own.items()}
    of[StepPhase.BACKWARD_WITH_REDUCTION] = shared
    return tuple(of.get(phase, 0.0) for phase in StepPhase)  # type: ignore[return-value]


More = "Callable[[int, int], dict[str, float]]"
"""Time that a rank takes longer in a step, by phase."""


def courses(
    more: Callable[[int, int], dict[str, float]],
    *,
    ranks: int = 4,
    waits: bool = True,
    cpu: Callable[[int], float] = lambda _rank: 0.1,
    delay: Callable[[int], float] = lambda _rank: 0.0,
) -> list[list[Record]]:
    """Return the records of ranks that end each step together: who is early waits in backward."""
    made: list[list[Record]] = [[] for _ in range(ranks)]
    now = float(START)
    for number in range(STEPS):
        extra = [more(rank, number) for rank in range(ranks)]
        own = [
            {name: OWN.get(name, 0.0) + each.get(name, 0.0) for name in {**OWN, **each}}
            for each in extra
        ]
        latest = max(sum(one.values()) for one in own)
        now += latest + BACKWARD
        for rank, one in enumerate(own):
            wait = latest - sum(one.values()) if waits else 0.0
            made[rank].append(
                step(
                    number,
                    time_ns=int(now * SECOND),
                    duration_s=sum(one.values()) + BACKWARD + wait,
                    phases=phases(one, BACKWARD + wait),
                    cpu_ns=int((number + 1) * cpu(rank) * SECOND),
                    run_delay_ns=int((number + 1) * delay(rank) * SECOND),
                )
            )
    return made


def found(made: Sequence[Sequence[Record]], late: int = 0) -> list[tuple[int, Finding]]:
    """Return the stragglers that a fleet of these ranks finds; ``late`` records are lost to it."""
    fleet = Fleet(Settings(), Clock(START + 60))
    for end in range(late, STEPS, 20):
        for rank, records in enumerate(made):
            who = identity(rank=rank, local_rank=rank, world_size=len(made), pid=100 + rank)
            part = records[end : end + 20]
            fleet.apply(f"/r{rank}", who, part, alive=True, lost=0, dropped=0)
        fleet.compare_views()
    return [
        (view.identity.rank, finding)
        for view in fleet.ranks()
        for finding in view.findings.values()
        if finding.kind == STRAGGLER.slug
    ]


@pytest.mark.parametrize(
    ("phase", "cpu", "delay", "words"),
    [
        ("forward", 0.1, 0.07, "its thread has no core for 70 ms more: its host is busy"),
        ("rest", 0.18, 0.0, "it computes longer outside of the phases known"),
        ("optimizer", 0.18, 0.0, "it computes longer in optimizer"),
        ("data", 0.1, 0.06, "its host is busy"),
    ],
)
def test_why_it_is_slow_follows_from_what_grows_with_it(
    phase: str, cpu: float, delay: float, words: str
) -> None:
    """CPU time, time without a core, or neither."""
    made = courses(
        lambda r, _: {phase: 0.08} if r == 1 else {},
        cpu=lambda r: cpu if r == 1 else 0.1,
        delay=lambda r: delay if r == 1 else 0.0,
    )

    assert [words in finding.summary for _, finding in found(made)] == [True]


def test_where_the_system_tells_no_times_of_threads_the_phase_is_named() -> None:
    """As on a system that is not Linux."""
    made = courses(
        lambda r, _: {"forward": 0.08} if r == 1 else {}, cpu=lambda _: -1.0, delay=lambda _: -1.0
    )
    unknown = [[_without_times(record) for record in records] for records in made]

    ((_, finding),) = found(unknown)
    assert "it takes longer in forward" in finding.summary


def _without_times(record: Record) -> Record:
    record.cpu_ns = record.run_delay_ns = -1  # type: ignore[union-attr]
    return record


def test_a_daemon_that_comes_late_finds_it_as_well() -> None:
    """From the steps that it has."""
    made = courses(lambda r, _: {"data": 0.08} if r == 2 else {})

    assert [rank for rank, _ in found(made, late=60)] == [2]


def test_of_devices_their_own_times_are_compared() -> None:
    """The hosts are ahead, and alike; one device computes longer in each step."""
    made = courses(lambda _r, _n: {})
    sick = courses(lambda r, _: {"forward": 0.08} if r == 3 else {})
    both: list[list[Record]] = []
    for mine, theirs in zip(made, sick, strict=True):
        records: list[Record] = []
        for host, device in zip(mine, theirs, strict=True):
            records.append(host)
            if host.step % 4 == 3:  # type: ignore[union-attr]
                records.append(device_phases(host.step, host.time_ns, device.phases))  # type: ignore[union-attr]
        both.append(records)

    assert [rank for rank, _ in found(both)] == [3]


def _noise(seed: int) -> Callable[[int, int], dict[str, float]]:
    chance = random.Random(seed)
    return lambda _rank, _step: {"forward": 0.1 * chance.random(), "rest": 0.1 * chance.random()}


def _turns(rank: int, step: int) -> dict[str, float]:
    return {"data": 0.2} if step // 30 % 4 == rank else {}


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(lambda r, _s: {"forward": 0.02 * (r == 1)}, id="slightly"),
        pytest.param(_turns, id="in_turns"),
        pytest.param(_noise(0), id="noise0"),
    ],
)
def test_ranks_of_which_none_keeps_the_others_waiting_are_left_alone(
    more: Callable[[int, int], dict[str, float]],
) -> None:
    """Noise, turns, and what is not worth a word."""
    assert found(courses(more)) == []


def test_ranks_that_do_not_wait_for_one_another_have_no_straggler() -> None:
    """One trains a larger model, and nobody waits: jobs that share a name."""
    assert found(courses(lambda r, _: {"forward": 0.2 * (r == 1)}, waits=False)) == []


def test_one_rank_alone_is_compared_with_nobody() -> None:
    """Neither does a single rank of several on this host make a comparison."""
    assert found(courses(lambda _r, _s: {"data": 0.5}, ranks=1)) == []
