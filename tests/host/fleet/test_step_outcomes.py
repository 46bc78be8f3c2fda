"""Ranks of one job that do not agree on a step."""

from __future__ import annotations

import pytest

from ampwatch.diagnosis.steps.kinds import RANK_FOUND_INF_MISMATCH
from ampwatch.host.fleet import Fleet
from ampwatch.settings import Settings
from ampwatch.wire.records import Record, SkipClass
from tests.workshop.clocks import SECOND, START, Clock
from tests.workshop.records import identity, optimizer, step

OK, INF = False, True


def history(verdicts: list[bool], *, first: int = 0, delay_s: float = 0.0) -> list[Record]:
    """Return the records of a rank whose scaler moves as the verdicts say."""
    records: list[Record] = []
    scale, tracker = 65536.0, 0
    for number, skipped in enumerate(verdicts, first):
        scale, tracker = (scale / 2, 0) if skipped else (scale, tracker + 1)
        records.append(
            step(
                number,
                time_ns=int((START + 1 + number + delay_s) * SECOND),
                duration_s=1.0,
                loss_scale=scale,
                growth_tracker=tracker,
                skip_class=SkipClass.UNPROVOKED if skipped else SkipClass.NONE,
            )
        )
        records.append(
            optimizer(
                step=number,
                skipped=skipped,
                total_steps=number + 1,
                total_skipped=(0, 0, int(skipped), 0),
            )
        )
    return records


def found(*courses: list[Record], world_size: int = 2) -> list[tuple[int, str, int]]:
    """Return rank, place and step of each finding of a fleet of these ranks."""
    fleet = Fleet(Settings(), Clock(START + 60))
    # Records arrive as they come: half of the first rank, all of the others, the rest.
    for rank, records in enumerate(courses):
        put(fleet, rank, records[: len(records) // 2], world_size)
    fleet.compare_views()
    for rank, records in enumerate(courses):
        put(fleet, rank, records[len(records) // 2 :], world_size)
    fleet.compare_views()
    fleet.compare_views()
    return [
        (view.identity.rank, f.where, f.first_step)
        for view in fleet.ranks()
        for f in view.findings.values()
        if f.kind == RANK_FOUND_INF_MISMATCH.slug
    ]


def put(fleet: Fleet, rank: int, records: list[Record], world_size: int) -> None:
    who = identity(rank=rank, world_size=world_size)
    fleet.apply(f"ring-{rank}", who, records, alive=True, lost=0, dropped=0)


def test_a_rank_that_skips_alone_is_named_with_the_step() -> None:
    """The other takes it; what follows is not told again."""
    courses = history([INF, INF, *[OK] * 9]), history([INF, INF, OK, OK, INF, *[OK] * 6])
    assert found(*courses) == [(1, "optimizer:0", 4)]


def test_one_of_four_is_enough() -> None:
    """Three agree with one another."""
    well = [OK] * 12
    odd = [*[OK] * 8, INF, OK, OK, OK]
    assert found(*map(history, (well, odd, well, well)), world_size=4) == [(1, "optimizer:0", 8)]


def test_the_very_first_step_is_compared_where_it_ended_at_the_same_time() -> None:
    """There is no scale yet to tell that both count alike."""
    sick, well = [INF, *[OK] * 9], [OK] * 10
    assert found(history(sick), history(well, delay_s=0.1)) == [(0, "optimizer:0", 0)]
    assert found(history(sick), history(well, delay_s=0.9)) == []


@pytest.mark.parametrize("verdicts", [[OK] * 9, [INF] * 4 + [OK] * 9, [OK, INF] * 5])
def test_ranks_that_agree_are_left_alone(verdicts: list[bool]) -> None:
    """However often they skip."""
    assert found(history(verdicts), history(verdicts)) == []


def test_a_rank_that_counts_otherwise_is_not_compared() -> None:
    """The monitor of this rank was made three steps later: its step 3 is the other's step 6."""
    verdicts = [INF, INF, *[OK] * 4, INF, *[OK] * 6]
    assert found(history(verdicts), history(verdicts[3:], delay_s=3.0)) == []


def test_two_runs_of_one_rank_each_are_no_ranks_of_one_job() -> None:
    """They may skip as they like."""
    courses = history([OK] * 9), history([OK, INF, *[OK] * 7])
    assert found(*courses, world_size=1) == []
