"""Lists of a daemon as a client gets them, from fleets that nobody trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ampwatch.cli.top.table import clean
from ampwatch.host.fleet import Fleet
from ampwatch.host.page.rank_lists import RankLists
from ampwatch.report.rank_list import unpacked
from ampwatch.settings import Settings
from ampwatch.wire.records import FindingRecord
from tests.workshop.clocks import START, Clock
from tests.workshop.fleets import made_up_fleet, put
from tests.workshop.records import alarm, identity, skipped_step, step

if TYPE_CHECKING:
    from ampwatch.report.rank_list import RankList

NOW = Clock(START + 20)


def state_of(fleet: Fleet) -> RankList:
    return unpacked(RankLists(fleet, NOW).sent(), clean)


def made_up_state() -> RankList:
    """Two runs of which everything is known: one that fails, one that has failed."""
    return state_of(made_up_fleet())


def many_ranks(count: int = 256, broken: int = 200) -> RankList:
    """One run of ``count`` ranks, of which ``broken`` has an overflow that its collapse follows from."""
    fleet = Fleet(Settings(), NOW)
    for rank in range(count):
        who = identity(rank=rank, local_rank=rank, world_size=count)
        records: list[Any] = [step(i, duration_s=0.1 + rank / 1000) for i in range(4)]
        if rank == broken:
            cause = alarm("forward_overflow", "decoder.3.ffn", op="mm", dtype="float16")
            collapse = alarm(first_step=4, evidence={"loss_scale": 2.0**-15})
            collapse.root, collapse.caused_by = False, cause.key
            records += [skipped_step(4, 2.0**-15), FindingRecord(cause), FindingRecord(collapse)]
        put(fleet, f"/gpt-{rank}.ring", who, records)
    return state_of(fleet)


def changed(ranks: RankList, run: str, rank: int, **new: Any) -> RankList:
    """The same list with one row changed."""
    rows = [replace(r, **new) if r.identity == (run, rank) else r for r in ranks.ranks]
    return replace(ranks, ranks=rows)


def without(ranks: RankList, run: str, rank: int | None = None) -> RankList:
    """The same list without a rank, or without a run."""
    rows = [r for r in ranks.ranks if r.run != run or rank not in (None, r.rank)]
    return replace(ranks, ranks=rows)
