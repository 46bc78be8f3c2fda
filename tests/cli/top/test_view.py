"""What is on the screen of `ampwatch top`, and what keys do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from ampwatch.cli.top.table import CHOSEN, Line, width_of
from ampwatch.cli.top.view import View
from ampwatch.report.verdict import Level
from tests.cli.top.states import changed, made_up_state, many_ranks, without

if TYPE_CHECKING:
    from ampwatch.report.rank_list import RankList


def view_of(state: RankList, ended: str = "") -> View:
    view = View()
    view.show(state, ended)
    return view


def text_of(line: Line) -> str:
    return "".join(text for text, _ in line).rstrip()


def screen(view: View, width: int = 100, height: int = 24) -> list[str]:
    lines = view.lines(width, height)
    assert len(lines) <= height
    assert all(sum(width_of(text) for text, _ in line) <= width for line in lines)
    return [text_of(line) for line in lines]


def chosen(view: View, width: int = 100) -> str:
    """The line that is chosen."""
    (line,) = [
        text_of(line) for line in view.lines(width, 24) if any(style == CHOSEN for _, style in line)
    ]
    return line


def test_trouble_stands_first_with_its_cause_below_the_table() -> None:
    """One line a rank; the four lines of the first one, whole."""
    said = screen(view_of(made_up_state()))

    assert [line.split()[0] for line in said[2:5]] == ["failing", "failed", "starting"]
    assert "optimizer 0: every step" in said[2]
    assert "2^15" in said[2]
    pane = said[said.index("─" * 100) :]
    assert pane[1].startswith("gpt rank 0: failing, since step 1, ")
    assert pane[2].startswith("what      optimizer 0: every step is skipped")
    assert pane[-1].startswith("up/down choose")


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_it_fits_and_says_what_is_wrong_at_any_width(width: int) -> None:
    """State, run, rank and cause have their place before any number has."""
    said = screen(view_of(made_up_state()), width)

    assert said[1].split()[:3] == ["STATE", "RUN", "RANK"]
    assert "WHAT" in said[1]
    assert "optimizer 0:" in said[2]
    assert ("LOSS" in said[1]) == (width >= 80)


@pytest.mark.parametrize("height", range(1, 12))
def test_a_low_terminal_has_rows_before_anything_else(height: int) -> None:
    """The line that is chosen is always there, if any is."""
    view = view_of(many_ranks(16, broken=9))
    view.press("<end>")

    said = screen(view, 80, height)

    assert height < 4 or any(line.startswith("healthy") for line in said)


def test_256_ranks_scroll() -> None:
    """To the last one and back, by lines and by pages."""
    view = view_of(many_ranks(256, broken=200))
    assert chosen(view).split()[:3] == ["failing", "gpt", "200"]

    view.press("<end>")
    assert chosen(view).split()[:3] == ["healthy", "gpt", "255"]
    view.press("<up>")
    assert chosen(view).split()[2] == "254"
    view.press("<page up>")
    assert int(chosen(view).split()[2]) < 250
    view.press("<home>")
    view.press("<up>")
    assert chosen(view).split()[2] == "200"
    view.press("<down>")
    assert chosen(view).split()[2] == "0"


def test_who_is_chosen_stays_chosen_wherever_its_line_goes() -> None:
    """The table is sorted anew each second."""
    state = many_ranks(8, broken=5)
    view = view_of(state)
    view.press("<down>")
    view.press("<down>")
    assert chosen(view).split()[2] == "1"

    view.show(changed(state, "gpt", 1, level=Level.FAILING), "")

    assert chosen(view).split()[2] == "1"


def test_without_a_choice_the_first_line_is_chosen_whoever_it_is() -> None:
    """What breaks while somebody looks on comes to the top, and is what the four lines are about."""
    state = many_ranks(8, broken=5)
    view = view_of(without(state, "gpt", 5))
    assert chosen(view).split()[2] == "0"

    view.show(state, "")

    assert chosen(view).split()[2] == "5"


def test_enter_opens_the_story_of_a_rank() -> None:
    """The four lines, its numbers, then each finding as reports have it: evidence and advice."""
    state = many_ranks(8, broken=5)
    state = changed(
        state, "gpt", 5, links={"its dashboard": "https://g/d/ampwatch-run?var-run=gpt"}
    )
    view = view_of(state)
    view.press("<enter>")

    said = "\n".join(screen(view, 100, 60))

    assert "\ngpt rank 5: failing, since step 0" in said
    assert "\nCRITICAL  forward_overflow  module decoder.3.ffn\n" in said
    assert "\n  What to change: change forward_overflow." in said
    assert "\n  It explains: scale_collapse in optimizer 0, since step 4." in said
    assert "\n    loss scale  " in said
    assert "\nscale     " in said
    assert " its dashboard: https://g/d/ampwatch-run?var-run=gpt\n" in said
    view.press("<escape>")
    assert chosen(view).split()[2] == "5"


def test_an_open_story_is_scrolled_to_its_end_and_no_further() -> None:
    """By lines, pages, and to both ends."""
    view = view_of(many_ranks(8, broken=5))
    view.press("<enter>")
    top = screen(view, 60, 12)
    view.press("<end>")
    bottom = screen(view, 60, 12)
    view.press("<down>")

    assert bottom != top
    assert bottom[-2].strip() == "More: ampwatch explain forward_overflow"
    assert screen(view, 60, 12) == bottom
    view.press("<up>")
    assert screen(view, 60, 12)[2:-1] == [screen(view, 60, 12)[2], *bottom[2:-2]]
    view.press("<home>")
    assert screen(view, 60, 12) == top


def test_an_open_story_goes_on_as_the_rank_does() -> None:
    """A new state is shown, scrolled to the same place; a rank that is gone stays as it was."""
    state = many_ranks(8, broken=5)
    view = view_of(state)
    view.press("<enter>")
    view.show(changed(state, "gpt", 5, headline=("", "it is worse", "", "")), "")
    assert "what      it is worse" in screen(view)

    view.show(without(state, "gpt"), "")

    assert "what      it is worse" in screen(view)


def test_f_goes_from_finding_to_finding() -> None:
    """In the table to the next rank that has one; in a story to the next one, of whichever rank."""
    state, other = many_ranks(4, broken=1), many_ranks(4, broken=3)
    both = {"a": state.ranks, "b": other.ranks}
    rows = [replace(row, run=run) for run, of in both.items() for row in of]
    view = view_of(replace(state, ranks=rows))
    assert chosen(view).split()[1:3] == ["a", "1"]
    view.press("f")
    assert chosen(view).split()[1:3] == ["b", "3"]
    view.press("f")
    assert chosen(view).split()[1:3] == ["a", "1"]

    view.press("<enter>")
    screen(view, 100, 60)
    view.press("f")

    assert screen(view, 100, 60)[1].startswith("b rank 3: ")


def test_s_sorts_and_says_by_what() -> None:
    """By trouble, by run and rank, slowest first, and round again."""
    view = view_of(many_ranks(4, broken=2))

    def order() -> list[str]:
        return [line.split()[2] for line in screen(view)[2:6]]

    assert order() == ["2", "0", "1", "3"]
    view.press("s")
    assert (order(), screen(view)[-1][-15:]) == (["0", "1", "2", "3"], "by run and rank")
    view.press("s")
    # The step that was skipped took a second.
    assert (order(), screen(view)[-1][-10:]) == (["2", "3", "1", "0"], "by slowest")
    view.press("s")
    assert order() == ["2", "0", "1", "3"]


def test_a_filter_lets_through_what_has_all_its_words() -> None:
    """Runs, hosts, levels, kinds and places; while it is typed q is a letter."""
    view = view_of(many_ranks(4, broken=2))
    for key in ["/", *"decoder.3 q"]:
        view.press(key)
    assert not view.is_over
    assert "filter: decoder.3 q_" in screen(view)
    assert "No rank has 'decoder.3 q'" in screen(view)[2]

    view.press("<backspace>")
    view.press("<enter>")
    assert [line.split()[2] for line in screen(view)[2:4] if line] == ["2"]
    assert "only 'decoder.3 '" in screen(view)[-1]

    view.press("<escape>")
    assert len([line for line in screen(view) if line.startswith("healthy")]) == 3


def test_a_daemon_that_is_away_is_said_and_the_last_state_stays() -> None:
    """Until the next state."""
    view = view_of(made_up_state())
    view.say("expected a daemon\x1b[2J, found none")
    said = screen(view)
    assert said[-2] == r"not current: expected a daemon\x1b[2J, found none"
    assert said[2].startswith("failing")

    view.show(made_up_state(), "")

    assert not any("not current" in line for line in screen(view))


def test_where_the_time_of_a_step_goes_is_the_daemons_line() -> None:
    """On the page of a rank."""
    state = changed(made_up_state(), "gpt", 0, phases="1 s: 60 % waiting for data")
    view = view_of(state)
    view.press("<enter>")
    assert "step      1 s: 60 % waiting for data" in screen(view)

    view.show(changed(state, "gpt", 0, phases=""), "")

    assert not any(line.startswith("step ") for line in screen(view))


@pytest.mark.parametrize("where", ["no run", "filter", "page"])
def test_what_is_gone_is_looked_for_elsewhere(where: str) -> None:
    """Not in a table that is empty, nor on a page that does not change any more."""
    state, ended = made_up_state(), "; `ampwatch report` has it"
    view = view_of(state, ended)
    view.press({"filter": "/", "page": "<enter>"}.get(where, "s"))
    for key in "gone" if where == "filter" else "":
        view.press(key)
    before = "\n".join(screen(view, 60))
    rest = without(state, "gpt")
    view.show(rest if where != "no run" else without(rest, "bert"), ended)
    said = "\n".join(screen(view, 60))

    assert ("`ampwatch" in before) == (where == "filter")
    assert "`ampwatch" in said
