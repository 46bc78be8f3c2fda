"""The list of ranks as the terminal gets it."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import pytest

from ampwatch.cli.top.table import clean, newest
from ampwatch.host.fleet import Fleet
from ampwatch.host.page.page import Feed
from ampwatch.host.page.rank_lists import MAX_SPANS, RankLists
from ampwatch.report.rank_list import RankList, unpacked
from ampwatch.report.report import render_incident
from ampwatch.report.verdict import Level
from ampwatch.settings import Settings
from ampwatch.wire.records import FindingRecord
from tests.cli.top.states import NOW, made_up_state, many_ranks, state_of
from tests.workshop.fleets import fleet_of, fleet_with_gpus, made_up_fleet, put
from tests.workshop.records import alarm, identity, step

if TYPE_CHECKING:
    from ampwatch.report.rank_list import RankRow


def row_of(state: RankList, run: str, rank: int = 0) -> RankRow:
    return next(row for row in state.ranks if row.identity == (run, rank))


def test_a_row_says_what_the_page_says() -> None:
    """The four lines and the figures are the page's, word for word; courses are numbers."""
    told = Feed(made_up_fleet(), NOW).full()["runs"]["gpt"]["ranks"]["0"]

    row = row_of(state_of(made_up_fleet()), "gpt")

    headline = tuple(
        map(clean, (told["headline"][n] for n in ("state", "cause", "where", "remedy")))
    )
    assert row.headline == headline
    assert row.figures == {
        clean(title): (clean(value), clean(note))
        for title, (value, note, is_known) in told["figures"].items()
        if is_known
    }
    assert row.level is Level.FAILING
    assert (row.step, row.world_size, row.is_shown) == (3, 2, True)
    assert row.scale == [65536.0, 32768.0, 16384.0, 32768.0]
    assert row.loss == [2.0, 2.0, math.inf, 2.0]
    assert newest(row.seconds) == 0.25
    assert row.figures["Skipped"][0] == "3"
    assert row.gpu == ""


def test_a_rank_without_a_step_is_a_row_as_well() -> None:
    """It has no numbers."""
    row = row_of(made_up_state(), "gpt", 1)

    assert (row.level, row.step) == (Level.STARTING, -1)
    assert (row.scale, row.loss, row.seconds) == ([], [], [])


def test_of_a_long_run_the_newest_spans_are_there() -> None:
    (row,) = state_of(fleet_of(*(step(i, loss=float(i)) for i in range(200)))).ranks

    assert row.loss == [float(i) for i in range(200 - MAX_SPANS, 200)]


def test_findings_are_stories_with_what_they_explain() -> None:
    """As reports have them, numbers included."""
    (incident,) = row_of(many_ranks(4, broken=3), "gpt", 3).incidents

    assert incident.finding.kind == "forward_overflow"
    assert (incident.finding.op, incident.finding.where) == ("mm", "decoder.3.ffn")
    assert [s.finding.kind for s in incident.symptoms] == ["scale_collapse"]
    told = render_incident(incident.symptoms[0])
    # As a number or in words: that is the daemon's.
    assert re.search(r"loss scale  (3\.05176e-05|3\.051758e-05 \(2\^-15\))\n", told)


def test_the_gpu_of_a_rank_is_beside_it() -> None:
    """Its number, how busy it and its tensor cores are, memory and heat."""
    assert row_of(state_of(fleet_with_gpus()), "gpt").gpu == "1: 99% tc 54% 62G 70C"


@pytest.mark.parametrize("run", ["\x1b[2J", "series"])
def test_no_name_or_message_gets_to_the_terminal_as_it_is(run: str) -> None:
    """Whatever a training is called, and whatever its findings say."""
    fleet = Fleet(Settings(), NOW)
    bad = alarm("forward_overflow", "a\nb", summary="\x1b[31m")
    put(fleet, "/a.ring", identity(run=run, host="\x1b]0;x\x07"), [step(0), FindingRecord(bad)])

    rows = unpacked(RankLists(fleet, NOW).sent(), clean).ranks

    assert "\x1b" not in repr(rows).replace("\\x1b", "")
    assert {row.run for row in rows} <= {r"\x1b[2J", "series"}
