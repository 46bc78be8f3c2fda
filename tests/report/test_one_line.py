"""A finding in one line: what a person reads in a log."""

from __future__ import annotations

import re
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampwatch.diagnosis.news import News, Reason
from ampwatch.report.accounts import first_sentence
from ampwatch.report.one_line import MAX_LENGTH, address, one_line
from ampwatch.wire.records import Finding, Severity

URL = "http://127.0.0.1:10917/"
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
    assert one_line(news(OVERFLOW), "gpt", [3], URL) == (
        "ampwatch CRITICAL run gpt rank 3 step 812: forward_overflow in module encoder.4 (op exp):"
        " In forward exp made inf of 12.5 since step 812. http://127.0.0.1:10917/#run=gpt&rank=3"
    )


def test_without_a_page_a_command_is_named() -> None:
    """Of a single rank no rank is named."""
    line = one_line(news(OVERFLOW), "gpt", [])

    assert line.startswith("ampwatch CRITICAL run gpt step 812: forward_overflow in module")
    assert line.endswith("since step 812. More: ampwatch explain forward_overflow")


def test_ranks_that_find_the_same_share_a_line() -> None:
    """It leads to the lowest of them."""
    line = one_line(news(OVERFLOW), "gpt", [1, 2, 3, 7], URL)

    assert line.startswith("ampwatch CRITICAL run gpt ranks 1-3, 7 step 812: forward_overflow")
    assert line.endswith("#run=gpt&rank=1")


def test_a_line_says_what_it_has_become_worse_than_and_what_explains_it() -> None:
    """Whoever has read the first line knows that this one is about the same."""
    line = one_line(news(COLLAPSE, Reason.WORSE, OVERFLOW, Severity.WARNING), "gpt", [], URL)

    assert (
        "step 820: scale_collapse in optimizer 0, escalated from warning,"
        " explained by forward_overflow in module encoder.4 (op exp): In forward"
    ) in line


def test_a_root_that_is_none_has_a_line_with_what_explains_it() -> None:
    """And without what happened, which its first line has."""
    assert one_line(news(COLLAPSE, Reason.EXPLAINED, OVERFLOW), "gpt", [0], URL) == (
        "ampwatch CRITICAL run gpt rank 0 step 820: scale_collapse in optimizer 0 is explained by"
        " forward_overflow in module encoder.4 (op exp). http://127.0.0.1:10917/#run=gpt&rank=0"
    )


@given(
    summary=st.text(max_size=600),
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
    line = one_line(news(finding, reason, root, Severity.INFO), "gpt", [0, 1], URL)
    ours = line.replace(first_sentence(summary), "")

    assert len(line.splitlines()) == 1
    assert len(line) <= MAX_LENGTH + 60  # a sentence is never cut below its beginning
    assert line.endswith(" http://127.0.0.1:10917/#run=gpt&rank=0")
    assert not re.search(r"param:|buffer:|optimizer:\d|@", ours.partition(": ")[2][:60])


@pytest.mark.parametrize("run", ["gpt", "a/b:c", "my.run-1"])
def test_the_address_leads_to_the_run(run: str) -> None:
    """As the page reads it."""
    fragment = parse_qs(urlsplit(address(URL, run, 3)).fragment)

    assert fragment == {"run": [run], "rank": ["3"]}
    assert address("", run) == ""
