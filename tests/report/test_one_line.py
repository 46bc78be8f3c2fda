"""A finding in one line: what a person reads in a log."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampwatch.diagnosis.news import News, Reason
from ampwatch.report.accounts import cut, first_sentence
from ampwatch.report.one_line import MAX_LENGTH, address, level_of, one_line
from ampwatch.wire.records import Finding, Severity

URL = "http://127.0.0.1:10917/"
PAGE = "http://127.0.0.1:10917/#run=gpt&rank=3"
OVERFLOW = Finding(
    "forward_overflow",
    Severity.CRITICAL,
    "encoder.4",
    "In forward exp made inf of 12.5 since step 812. It is too large for float16",
    "Clamp it",
    op="exp",
    first_step=812,
    last_step=812,
)
COLLAPSE = replace(OVERFLOW, kind="scale_collapse", where="optimizer:0", op="", last_step=820)


def news(
    finding: Finding,
    reason: Reason = Reason.MADE,
    root: Finding | None = None,
    since: Severity | None = None,
) -> News:
    return News(finding, reason, finding.severity, root or finding, since)


def test_a_line_says_severity_run_rank_step_kind_place_and_what_happened() -> None:
    """And leads to the rest."""
    assert one_line(news(OVERFLOW), "gpt", [3], PAGE) == (
        "ampwatch CRITICAL run gpt rank 3 step 812: forward_overflow in module encoder.4 (op exp):"
        " In forward exp made inf of 12.5 since step 812. http://127.0.0.1:10917/#run=gpt&rank=3"
    )


def test_without_a_page_a_command_is_named() -> None:
    """Of a single rank no rank is named."""
    line = one_line(news(OVERFLOW), "gpt", [])

    assert line.startswith("ampwatch CRITICAL run gpt step 812: forward_overflow in module")
    assert line.endswith("since step 812. More: ampwatch explain forward_overflow")


def test_ranks_that_find_the_same_share_a_line() -> None:
    """It leads to the one that writes."""
    line = one_line(news(OVERFLOW), "gpt", [1, 2, 3, 7], PAGE)

    assert line.startswith("ampwatch CRITICAL run gpt ranks 1-3, 7 step 812: forward_overflow")
    assert line.endswith(PAGE)


def test_a_line_says_what_it_has_become_worse_than_and_what_explains_it() -> None:
    """Whoever has read the first line knows that this one is about the same."""
    line = one_line(news(COLLAPSE, Reason.WORSE, OVERFLOW, Severity.WARNING), "gpt", [], PAGE)

    assert (
        "step 820: scale_collapse in optimizer 0, escalated from warning,"
        " explained by forward_overflow in module encoder.4 (op exp): In forward"
    ) in line


@pytest.mark.parametrize("since", [812, 850])
def test_a_root_that_is_none_has_a_quiet_line_with_what_it_is_part_of(since: int) -> None:
    """Without what happened, which its first line has; and true of a root that was seen later."""
    root = replace(OVERFLOW, first_step=since)
    explained = news(COLLAPSE, Reason.EXPLAINED, root)

    assert one_line(explained, "gpt", [3], PAGE) == (
        "ampwatch INFO run gpt rank 3 step 820: scale_collapse in optimizer 0 is now part of:"
        f" forward_overflow in module encoder.4 (op exp), since step {since}. {PAGE}"
    )
    assert level_of(explained) == logging.INFO
    assert level_of(news(COLLAPSE)) == logging.ERROR


@pytest.mark.rotating
@given(
    run=st.text(max_size=40),
    where=st.text(max_size=40),
    op=st.text(max_size=20),
    reason=st.sampled_from(Reason),
)
def test_a_line_is_one_line_whatever_things_are_called(
    run: str, where: str, op: str, reason: Reason
) -> None:
    """Nothing in it moves a cursor, breaks a line or turns the direction of what follows."""
    finding = replace(OVERFLOW, where=where, op=op, summary=f"{where} made inf")
    line = one_line(news(finding, reason, finding), run, [], address(URL, run, 0, 1))

    assert line.isprintable()
    assert line.startswith("ampwatch ")


def test_a_name_cannot_forge_a_line() -> None:
    """It is written so that a reader sees what it is."""
    line = one_line(news(OVERFLOW), "gpt\nampwatch CRITICAL run other\x1b[2J\u202e", [])

    assert "run gpt\\nampwatch CRITICAL run other\\x1b[2J\\u202e step 812" in line


@given(
    summary=st.text(st.characters(exclude_characters="@:"), max_size=600),
    where=st.sampled_from(
        ["", "a.b", "param:a.w", "buffer:x", "optimizer:1", "loss", "api", "env"]
    ),
    reason=st.sampled_from(Reason),
    is_explained=st.booleans(),
)
def test_a_line_is_one_line_that_is_read_at_a_glance(
    summary: str, where: str, reason: Reason, *, is_explained: bool
) -> None:
    """Short, with the address whole, and with places as people call them."""
    finding = replace(OVERFLOW, where=where, summary=summary, kind="scale_collapse")
    root = OVERFLOW if is_explained else finding
    line = one_line(news(finding, reason, root, Severity.INFO), "gpt", [0, 1], PAGE)

    assert len(line.splitlines()) == 1
    assert len(line) <= MAX_LENGTH + 60  # a sentence is never cut below its beginning
    assert line.endswith(f" {PAGE}")
    assert not re.search(r"param:|buffer:|optimizer:\d|@", line.removesuffix(PAGE))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Use torch.nn.X, e.g. LayerNorm. Or", "Use torch.nn.X, e.g. LayerNorm."),
        ("Fill with less, i.e. Two. Or", "Fill with less, i.e. Two."),
        ("See cf. Micikevicius. Or", "See cf. Micikevicius."),
        ("Take torch.finfo(x).min\n/ 2. Never two", "Take torch.finfo(x).min / 2."),
        ("One", "One."),
    ],
)
def test_a_sentence_ends_at_its_full_stop(text: str, expected: str) -> None:
    """And neither within a name nor within an abbreviation."""
    assert first_sentence(text) == expected


@pytest.mark.parametrize(
    ("max_characters", "expected"),
    [
        (300, "it falls every 7 steps; at this rate 1/scale becomes infinite in 151 steps"),
        (73, "it falls every 7 steps; at this rate 1/scale becomes infinite..."),
        (70, "it falls every 7 steps; at this rate 1/scale becomes infinite..."),
        (45, "it falls every 7 steps..."),
        (21, "it falls..."),
    ],
)
def test_what_is_cut_ends_where_it_can_be_left(max_characters: int, expected: str) -> None:
    """At the end of a clause; else at a word, and before a number whose unit is gone."""
    text = "it falls every 7 steps; at this rate 1/scale becomes infinite in 151 steps"

    assert cut(text, max_characters) == expected


def test_a_cut_leaves_no_bracket_open_if_it_can() -> None:
    """The end of a clause in brackets is none."""
    text = "Look at this module now, put a norm before it, or use (torch.autocast(device, False)) there"

    assert cut(text, 80) == "Look at this module now, put a norm before it..."


@given(
    st.lists(
        st.sampled_from(["scale", "is", "0.25,", "151", "(2^24)", "lost;", "now"]), min_size=3
    ),
    st.integers(10, 80),
)
def test_what_is_cut_begins_like_the_whole_and_ends_with_no_number(
    words: list[str], max_characters: int
) -> None:
    """However little room there is."""
    text = "overflow " + " ".join(words)
    short = cut(text, max_characters)

    assert len(short) <= max(max_characters, len("overflow..."))
    if short != text:
        assert text.startswith(short.removesuffix("..."))
        assert not re.search(r"\d\W*\.\.\.$", short)


def test_an_address_leads_to_a_step_and_a_finding() -> None:
    """Names that an address has signs of its own for arrive whole."""
    finding = "forward_overflow@a&b=c#d+e f"
    started = 1_700_000_000_250_000_000
    found = address(URL, "a/b:c", 3, started, step=812, finding=finding)

    assert parse_qs(urlsplit(found).fragment) == {
        "run": ["a/b:c"],
        "rank": ["3"],
        "started": ["1700000000.250"],
        "step": ["812"],
        "finding": [finding],
    }
    assert address("", "gpt") == ""
