"""The page of one rank: its four lines, its numbers, and the story of each finding."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from ampwatch.cli.top.cells import Line, Span, Style, clean
from ampwatch.cli.top.table import STYLES
from ampwatch.report.report import render_story
from ampwatch.report.short import INDENT, MIN_WIDTH, labelled
from ampwatch.report.sparks import spark

if TYPE_CHECKING:
    from ampwatch.cli.top.rows import Row

MAX_WIDTH = 100
"""Cells of a line of prose; longer ones are hard to read."""


def headline_lines(who: str, level: str, told: tuple[str, str, str, str], width: int) -> list[Line]:
    """Return a verdict in its four lines, each with what it is about, none of them cut."""
    style = STYLES.get(level, Style.PLAIN)
    return [
        [Span(label, Style.QUIET), Span(text, Style.PLAIN if label else style)]
        for label, text in labelled(who, told, min(width, MAX_WIDTH))
    ]


def _about(label: str, text: str, width: int) -> list[Line]:
    """Return a line about something, below itself where it is long."""
    wrapped = textwrap.wrap(text, max(min(width, MAX_WIDTH) - INDENT, MIN_WIDTH))
    return [
        [Span(f"{'' if place else label:<{INDENT}}", Style.QUIET), Span(line)]
        for place, line in enumerate(wrapped)
    ]


class RankPage:
    """The page of one rank, scrolled to somewhere.

    Args:
        row: The rank.
        is_ascii: Whether only ASCII can be shown.
        top: First line that is shown.
    """

    def __init__(self, row: Row, *, is_ascii: bool, top: int = 0) -> None:
        self.identity = row.identity
        self._row = row
        self._is_ascii = is_ascii
        self._top = top
        self._starts: list[int] = []
        self._num_lines = self._room = 0

    def of(self, row: Row) -> RankPage:
        """Return the page of a newer row of the same rank, scrolled to the same place."""
        return RankPage(row, is_ascii=self._is_ascii, top=self._top)

    def scroll(self, lines: int) -> None:
        """Move by ``lines``, not beyond the ends."""
        self._top = min(max(self._top + lines, 0), max(self._num_lines - self._room, 0))

    def go_to_next_finding(self) -> bool:
        """Move to the next finding; return whether there is one."""
        last = max(self._num_lines - self._room, 0)
        after = next((start for start in self._starts if start > self._top), None)
        if after is None or self._top >= last:
            return False
        self._top = min(after, last)
        return True

    def lines(self, width: int, room: int) -> list[Line]:
        """Return the ``room`` lines that are shown."""
        every = self._head(width)
        self._starts = []
        for story in self._row.stories:
            every.append([])
            self._starts.append(len(every))
            told = render_story(story, max(min(width, MAX_WIDTH), MIN_WIDTH)).splitlines()
            style = Style.STRONG if story.goes_on else Style.QUIET
            every.append([Span(told[0] + ("" if story.goes_on else "  (over)"), style)])
            every += [[Span(line)] for line in told[1:]]
        if not self._row.stories:
            every += [[], [Span("No finding was made.")]]
        self._num_lines, self._room = len(every), room
        self._top = min(self._top, max(len(every) - room, 0))
        return every[self._top : self._top + room]

    def _head(self, width: int) -> list[Line]:
        row = self._row
        room = max(min(width, MAX_WIDTH) - INDENT, MIN_WIDTH)
        scales = spark(row.scales, room, is_ascii=self._is_ascii, is_log=True)
        losses = spark(row.losses, room, is_ascii=self._is_ascii)
        lines = headline_lines(row.name, row.level, row.lines, width)
        lines += _about("who", _who(row), width)
        lines += _about("step", row.step_line, width)
        for title, value, note in row.figures:
            lines += _about("", f"{title}: {value}{f' ({note})' if note else ''}", width)
        for label, course in (("scale", scales), ("loss", losses)):
            if course.strip():
                lines.append([Span(f"{label:<{INDENT}}", Style.QUIET), Span(course)])
        return lines


def _who(row: Row) -> str:
    of = f" of {row.world_size}" if row.world_size > 1 else ""
    where = f" on {row.host}" if row.host else ""
    whose = f", of {row.user}" if row.user else ""
    gpu = f", GPU {row.gpu}" if row.gpu else ""
    return clean(f"rank {row.rank}{of}{where}{whose}{gpu}; {row.process}")


def page_of(row: Row, *, is_ascii: bool) -> RankPage:
    """Return the page of a rank, from its beginning."""
    return RankPage(row, is_ascii=is_ascii)
