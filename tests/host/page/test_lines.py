"""The ranks of a run in two lines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ampwatch.host.page.lines import counted, part_of
from ampwatch.report.endings import Failure
from ampwatch.report.incidents import Incident
from ampwatch.report.verdict import Level, RunVerdict, Verdict
from tests.workshop.records import alarm


def ranks(*levels: Level | tuple[Level, str]) -> RunVerdict:
    """The verdict on ranks in these states, some of them with the kind of finding that made it."""
    by_rank = {}
    for rank, given in enumerate(levels):
        level, kind = given if isinstance(given, tuple) else (given, "")
        root = Incident(alarm(kind), [rank]) if kind else None
        by_rank[rank] = Verdict(level, f"what rank {rank} says", root=root)
    shown_rank = min(by_rank, key=lambda rank: by_rank[rank].level.badness)
    judged = by_rank[shown_rank]
    return RunVerdict(judged.level, judged.sentence, shown_rank=shown_rank, by_rank=by_rank)


def test_ranks_that_differ_from_the_rest_are_named() -> None:
    """Of the others their number is enough."""
    levels = [Level.HEALTHY] * 256
    levels[3], levels[9:15], levels[77] = Level.STALE, [Level.STALE] * 6, Level.FAILING

    assert counted(ranks(*levels)) == (
        "248 healthy, 7 stale (ranks 3, 9-14), 1 failing (rank 77)",
        "rank 77 is failing: what rank 77 says",
    )


def test_ranks_that_are_all_alike_are_a_number_and_a_word() -> None:
    """What they say stands in the verdict of the run already."""
    assert counted(ranks(*[Level.HEALTHY] * 8)) == ("8 healthy", "")


def test_one_state_for_two_causes_is_two_states() -> None:
    """Which rank is the different one is seen where every rank has something."""
    verdict = ranks(
        *[(Level.ATTENTION, "headroom_low")] * 3, (Level.ATTENTION, "grad_underflow"), Level.HEALTHY
    )

    assert counted(verdict)[0] == (
        "3 needs attention (headroom_low), 1 healthy (rank 4),"
        " 1 needs attention (grad_underflow, rank 3)"
    )


def test_the_rank_that_made_others_end_is_told_from_them() -> None:
    """All eight have failed, and one of them is to be looked at."""
    cause = Failure(3, "ValueError: bad sample", 0.0)
    verdict = ranks(*[Level.FAILED] * 8)
    others = {
        rank: of if rank == 3 else replace(of, ended_by=cause)
        for rank, of in verdict.by_rank.items()
    }

    assert counted(replace(verdict, by_rank=others, shown_rank=3)) == (
        "7 failed (because of rank 3), 1 failed (rank 3)",
        "rank 3 has failed: what rank 3 says",
    )


@pytest.mark.parametrize("order", [1, -1])
def test_of_equally_many_the_worse_ones_are_named(order: int) -> None:
    """In whatever order the ranks are known."""
    states = [Level.FAILED, Level.FINISHED][::order]

    counts = counted(ranks(*states))[0]

    assert counts == f"1 finished, 1 failed (rank {states.index(Level.FAILED)})"


def test_the_rank_whose_end_led_to_the_others_is_named_so() -> None:
    """Eight ranks that have failed look alike otherwise; of one that was alone there is nothing to tell."""
    verdict = ranks(*[Level.FAILED] * 8)
    verdict.by_rank[3] = replace(verdict.by_rank[3], is_cause=True)
    alone = ranks(Level.FAILED)
    alone.by_rank[0] = replace(alone.by_rank[0], is_cause=True)

    assert [part_of(rank, verdict) for rank in (2, 3)] == ["", "the cause"]
    assert part_of(0, alone) == ""
