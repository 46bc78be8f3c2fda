"""A report that fits one screen."""

from __future__ import annotations

import pytest

from ampwatch.report.headline import headline
from ampwatch.report.judged_boxes import judge_boxes
from ampwatch.report.short import labelled, render_short
from ampwatch.report.words import plain
from ampwatch.wire.blackbox import Box
from ampwatch.wire.records import RunState, Severity
from tests.workshop.boxes import box
from tests.workshop.clocks import START
from tests.workshop.records import alarm, identity

NOW_S = START + 200.0


def test_it_is_the_four_lines_and_what_it_explains_counted() -> None:
    """The lines are those of everywhere else, word for word."""
    said = render_short([box()], NOW_S)

    told = headline(judge_boxes([box()]), NOW_S)
    lines = said.splitlines()
    assert lines[0] == plain(f"gpt: {told.state}")
    assert [line[10:] for line in lines[1:4]] == [told.cause, told.where, told.remedy]
    assert [line[:10].strip() for line in lines[1:4]] == ["what", "where", "do first"]
    assert lines[4:] == ["explains  1 finding: scale_collapse"]
    assert said.isascii()


def test_findings_that_have_nothing_to_do_with_it_are_counted_by_kind() -> None:
    """Those that are alarming by name, most of a kind first; the rest as a number."""
    findings = [alarm("forward_overflow", "a")]
    findings += [alarm("grad_underflow", str(i), severity=Severity.WARNING) for i in range(3)]
    findings += [alarm(f"kind_{i}", severity=Severity.WARNING) for i in range(4)]
    findings += [alarm("fp32_matmul", severity=Severity.INFO)]
    findings[0].first_step = -1  # what was first of equals is what it is about

    said = render_short([Box(identity(), RunState.FAILED, "it broke", findings=findings)], NOW_S)

    also = said[said.index("also") :]
    assert "7 findings: 3 grad_underflow, kind_0, kind_1, kind_2, 1 kinds more" in " ".join(
        also.split()
    )
    assert " ".join(also.split()).endswith("; 1 of severity info")


def test_a_run_in_which_nothing_went_wrong_has_nothing_to_count() -> None:
    """Four lines are all."""
    said = render_short([Box(identity(world_size=1), RunState.FINISHED)], NOW_S)

    assert len(said.splitlines()) == 4
    assert said.startswith("gpt: finished")


@pytest.mark.parametrize("width", [40, 60, 92])
def test_no_line_is_longer_than_asked_and_no_word_is_lost(width: int) -> None:
    """Long lines go on below themselves."""
    said = render_short([box()], NOW_S, width)

    assert max(map(len, said.splitlines())) <= width
    words = set(render_short([box()], NOW_S, 200).split())
    assert words == set(said.split())


def test_what_is_empty_is_left_out() -> None:
    """A verdict may have nothing to do first."""
    assert labelled("gpt", ("healthy", "all is well", "", ""), 80) == [
        ("", "gpt: healthy"),
        ("what      ", "all is well"),
    ]
