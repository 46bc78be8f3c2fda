"""The ranks in a state of the daemon."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from ampwatch.cli.top.rows import Row, badness_of, cleaned, headline_of, newest, rows_of
from ampwatch.report.report import render_story
from ampwatch.report.verdict import Level
from tests.cli.top.states import made_up_state, many_ranks, state_of
from tests.workshop.fleets import fleet_with_gpus


def row_of(state: Any, run: str, rank: int = 0) -> Row:
    return next(row for row in rows_of(cleaned(state)) if row.identity == (run, rank))


def test_a_row_says_what_the_page_says() -> None:
    """The four lines and the figures are the daemon's, word for word; courses are numbers."""
    state = made_up_state()
    told = state["runs"]["gpt"]["ranks"]["0"]

    row = row_of(state, "gpt")

    headline = tuple(told["headline"][n] for n in ("state", "cause", "where", "remedy"))
    assert headline_of(row.data) == headline
    assert row.level == "failing"
    assert (row.step, row.world_size, row.is_speaker) == (3, 2, True)
    assert row.courses["scale"] == [65536.0, 32768.0, 16384.0, 32768.0]
    assert row.courses["loss"] == [2.0, 2.0, math.inf, 2.0]
    assert newest(row.courses["seconds"]) == 0.25
    assert row.figures["Skipped"][0] == "3"
    assert row.gpu == ""


def test_a_rank_without_a_step_is_a_row_as_well() -> None:
    """It has no numbers."""
    row = row_of(made_up_state(), "gpt", 1)

    assert (row.level, row.step) == ("starting", -1)
    assert row.courses == {"scale": [], "loss": [], "seconds": []}


def test_findings_are_stories_with_what_they_explain() -> None:
    """As reports have them, numbers included."""
    (story,) = row_of(many_ranks(4, broken=3), "gpt", 3).stories()

    assert story.finding.kind == "forward_overflow"
    assert (story.finding.op, story.finding.where) == ("mm", "decoder.3.ffn")
    assert [s.finding.kind for s in story.symptoms] == ["scale_collapse"]
    told = render_story(story.symptoms[0])
    # As a number or in words: that is the daemon's.
    assert re.search(r"loss_scale  (3\.05176e-05|2\^-15)\n", told)


def test_the_gpu_of_a_rank_is_beside_it() -> None:
    """Its number, how busy it and its tensor cores are, memory and heat."""
    assert row_of(state_of(fleet_with_gpus()), "gpt").gpu == "1: 99% tc 54% 62G 70C"


def test_an_older_daemon_has_less_to_say() -> None:
    """Without the four lines: the level, the first sentence of each."""
    state = made_up_state()
    told = state["runs"]["gpt"]["ranks"]["0"]
    del told["headline"]
    told |= {"sentence": "It broke. And more.", "advice": "Mend it. Or not."}

    assert headline_of(row_of(state, "gpt").data) == ("failing", "It broke.", "", "Mend it.")


def test_a_newer_daemon_may_say_what_nobody_knows_yet() -> None:
    """A level and a severity of another release are shown; the unknown level stands last."""
    state = many_ranks(4, broken=3)
    told = state["runs"]["gpt"]["ranks"]["3"]
    told["level"] = "enlightened"
    for finding in told["findings"].values():
        finding["severity"] = "cosmic"

    row = row_of(state, "gpt", 3)

    assert row.level == "enlightened"
    assert badness_of(row.level) > badness_of(Level.FINISHED.value)
    assert row.stories()


def test_numbers_are_those_of_the_finding_whatever_they_are() -> None:
    """JSON has words for NaN and infinities; and a figure that is not known yet is none."""
    state = many_ranks(4, broken=3)
    told = state["runs"]["gpt"]["ranks"]["3"]
    told["findings"]["scale_collapse@optimizer:0"]["evidence"] = {
        "loss_scale": 2.0**-15,
        "in_amax": "Infinity",
        "newer": ["than", "this"],
    }
    told["figures"] = {"Loss": ["2", "as measured", True], "Step time": ["not yet", "", False]}

    row = row_of(state, "gpt", 3)

    text = render_story(row.stories()[0])
    assert "loss_scale  3.051758e-05 (2^-15)\n" in text
    assert "in_amax     infinity\n" in text
    assert "newer" not in text
    assert row.figures == {"Loss": ("2", "as measured")}


@pytest.mark.parametrize("run", ["\x1b[2J", "series"])
def test_no_name_or_message_gets_to_the_terminal_as_it_is(run: str) -> None:
    """Whatever a training is called, and whatever its findings say."""
    state = many_ranks(2, broken=1)
    told = state["runs"].pop("gpt")
    state["runs"][run] = told
    rank = told["ranks"]["1"]
    rank["host"] = "\x1b]0;x\x07"
    for finding in rank["findings"].values():
        finding |= {"summary": "\x1b[31m", "where": "a\nb"}

    rows = rows_of(cleaned(state))

    assert "\x1b" not in repr(rows).replace("\\x1b", "")
    assert {row.run for row in rows} <= {r"\x1b[2J", "series"}
