"""The report at the end: of the ranks of a machine that end together, one prints it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from ampwatch.settings import Settings
from ampwatch.training.attach.last_word import MAX_SECONDS, last_word
from ampwatch.wire.blackbox import Box, files
from ampwatch.wire.records import Finding, RunState, Severity
from tests.workshop.records import identity

RANKS = 4
BEGAN_NS = identity().started_ns
END_S = 100.0


def box(
    rank: int,
    *places: str,
    error: str = "",
    severity: Severity = Severity.WARNING,
    at_s: float = END_S,
) -> Box:
    who = identity(run="gpt", rank=rank, local_rank=rank, world_size=RANKS, pid=100 + rank)
    state = RunState.FAILED if error else RunState.FINISHED
    findings = [
        Finding("scale_collapse", severity, place, "It broke", "Mend it") for place in places
    ]
    return Box(who, state, error, ended_ns=BEGAN_NS + int(at_s * 1e9), findings=findings)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.resolve({"report_dir": str(tmp_path)})


def told(settings: Settings, *boxes: Box) -> dict[int, str]:
    """Return what each rank prints, if all of them write their boxes before they print."""
    for each in boxes:
        files.write(files.report_directory(settings.report_dir), each, 64)
    waited: list[int] = []
    texts = {b.identity.rank: last_word(b, settings, lambda: waited.append(1)) for b in boxes}
    assert len(waited) == len(boxes)
    return texts


def test_ranks_that_end_together_print_one_report_of_all(settings: Settings) -> None:
    """The one that has ended first does; also when nobody else has come that far."""
    order = {2: 0.0, 1: 0.1, 3: 0.2, 0: MAX_SECONDS / 2}
    texts = told(settings, *(box(r, "optimizer:0", at_s=END_S + s) for r, s in order.items()))

    assert [rank for rank, text in texts.items() if text] == [2]
    assert texts[2].startswith("ampwatch report: run gpt, 4 of 4 ranks\n")
    assert texts[2].count("WARNING  scale_collapse") == 1
    assert "ranks 0-3" in texts[2]


@pytest.mark.parametrize(
    ("late", "adds"),
    [
        (box(0, "optimizer:0", at_s=200), ""),
        (box(0, "optimizer:0", "optimizer:7", at_s=200), "optimizer 7"),
        (box(0, "optimizer:0", severity=Severity.CRITICAL, at_s=200), "CRITICAL  scale_collapse"),
        (box(0, "optimizer:0", error="ValueError: boom", at_s=200), "boom"),
    ],
)
def test_a_rank_that_comes_later_adds_what_differs_alone(
    late: Box, adds: str, settings: Settings
) -> None:
    """A further finding, a worse one, a failure of its own. It may have evaluated for an hour."""
    text = told(settings, *(box(rank, "optimizer:0") for rank in (1, 2, 3)), late)[0]

    assert text.startswith("ampwatch report: run gpt, rank 0, on ") == bool(adds)
    assert adds in text
    assert "WARNING  scale_collapse  optimizer 0" not in text


def test_a_connection_that_a_failed_rank_has_closed_is_nothing_to_add(settings: Settings) -> None:
    """The failure has been reported, and theirs follows from it."""
    lost = "RuntimeError: Connection closed by peer"
    texts = told(
        settings,
        box(3, "optimizer:0", error="ValueError: boom"),
        *(box(rank, "optimizer:0", error=lost, at_s=END_S + 1 + rank) for rank in range(3)),
    )

    assert [rank for rank, text in texts.items() if text] == [3]


def test_what_a_rank_alone_has_found_is_in_the_report(settings: Settings) -> None:
    """Whether it ends first or last; one that has raised an exception has no word of its own."""
    texts = told(settings, box(1, "optimizer:0"), box(3, "optimizer:1", at_s=END_S + 0.2))
    assert "optimizer 1" in texts[1]
    assert texts[3] == ""


def test_a_rank_that_was_killed_is_in_the_report_if_a_daemon_has_noticed(
    settings: Settings,
) -> None:
    """It has no time of its end, and prints nothing."""
    dead = replace(box(0, "optimizer:0", error="killed"), ended_ns=0, written_ns=2**62)
    files.write(files.report_directory(settings.report_dir), dead, 64)
    text = told(settings, box(1, "optimizer:0"))[1]

    assert text.startswith("ampwatch report: run gpt, 2 of 4 ranks\n")
    assert "killed" in text


def test_what_an_earlier_start_or_another_run_has_left_is_not_of_this_one(
    settings: Settings,
) -> None:
    """Nor what another machine has, in a directory that they share."""
    old = box(1, "optimizer:0", at_s=-1)
    others = [
        replace(old, identity=structs.replace(old.identity, started_ns=BEGAN_NS - 10**11)),
        replace(box(2, "optimizer:0"), identity=structs.replace(box(2).identity, host="elsewhere")),
        replace(box(3, "optimizer:0"), identity=structs.replace(box(3).identity, world_size=2)),
        replace(box(3, "optimizer:0", at_s=1), state=RunState.RUNNING, ended_ns=0),
    ]
    for other in others:
        files.write(files.report_directory(settings.report_dir), other, 64)
    (files.run_directory(files.report_directory(settings.report_dir), "gpt") / "x.json").touch()

    assert told(settings, box(0, "optimizer:0"))[0].startswith("ampwatch report: run gpt, rank 0")


def test_two_jobs_of_one_name_each_print_theirs(settings: Settings) -> None:
    """Whose the other ranks are nobody knows; twice is better than never."""
    mine, other = box(0, "optimizer:0"), box(0, "optimizer:0", at_s=99)
    other = replace(other, identity=structs.replace(other.identity, pid=7))
    files.write(files.report_directory(settings.report_dir), other, 64)

    assert told(settings, mine)[0].startswith("ampwatch report: run gpt, rank 0")


@pytest.mark.parametrize("ranks", [1, RANKS])
def test_a_rank_that_leaves_no_box_waits_for_nobody(ranks: int, settings: Settings) -> None:
    """The only one of a run; one of several whose box could not be written, or with serve=False."""
    mine = box(0, "optimizer:0")
    mine = replace(mine, identity=structs.replace(mine.identity, world_size=ranks))
    if ranks == 1:
        files.write(files.report_directory(settings.report_dir), mine, 64)
    text = last_word(mine, settings, lambda: pytest.fail("it waits"))

    assert text.startswith("ampwatch report: run gpt, rank 0")
