"""The table of ranks: as many columns as a terminal has room for, the most important ones first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampwatch.cli.top.cells import Line, Span, Style, padded, width_of
from ampwatch.report.sparks import spark
from ampwatch.report.verdict import Level
from ampwatch.report.words import plain, scale, step_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.cli.top.rows import Row

GAP = 2

MIN_WORDS = 20
"""Cells of what is wrong for which scale and loss make room, and their courses."""

MIN_MORE_WORDS = 40
"""Cells of it for which every other number makes room."""

SPARKS = (8, 16)
"""Cells of a course, on a narrow and on a wide terminal."""

WIDE = 110

ALWAYS, OTHER = 90, 60
"""Worth of columns that are always there, and from which on they are other numbers."""
MAX_NAME = 24

STYLES = {
    Level.FAILING.value: Style.BAD,
    Level.BROKEN.value: Style.BAD,
    Level.FAILED.value: Style.BAD,
    Level.STALE.value: Style.WARNING,
    Level.ATTENTION.value: Style.WARNING,
    Level.HEALTHY.value: Style.GOOD,
    Level.FINISHED.value: Style.QUIET,
}
"""How a level is shown; its word says the same."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table.

    Attributes:
        title: Its heading.
        text: Returns what a row has there.
        worth: Columns of more worth get their room first; see ``ALWAYS`` and ``OTHER``.
        is_number: Stands on the right.
        max_width: Cells at most.
        gap: Cells between it and the next one.
    """

    title: str
    text: Callable[[Row], str]
    worth: int
    is_number: bool = False
    max_width: int = MAX_NAME
    gap: int = GAP


def columns(width: int, *, is_ascii: bool = False) -> tuple[Column, ...]:
    """Return all columns but the last one, what is wrong, in the order in which they stand."""
    cells = SPARKS[width >= WIDE]

    def scales(row: Row) -> str:
        return spark(row.scales, cells, is_ascii=is_ascii, is_log=True)

    def losses(row: Row) -> str:
        return spark(row.losses, cells, is_ascii=is_ascii)

    return (
        Column("STATE", lambda row: level_word(row.level), worth=100),
        Column("RUN", lambda row: row.run, worth=99),
        Column("RANK", lambda row: str(row.rank), worth=98, is_number=True),
        Column("STEP", lambda row: "-" if row.step < 0 else str(row.step), 85, is_number=True),
        Column("SCALE", lambda row: scale_word(_last(row.scales)), 80, is_number=True, gap=1),
        Column("", scales, 75),
        Column("LOSS", lambda row: _number(_last(row.losses)), 70, is_number=True, gap=1),
        Column("", losses, 65),
        Column("GPU", lambda row: row.gpu, 60),
        Column("SKIPPED", lambda row: row.figure("Skipped"), 50, is_number=True),
        Column("STEP TIME", lambda row: _time(row.step_seconds), 40, is_number=True),
    )


def level_word(level: str) -> str:
    """Return a level in one word, as metrics have it."""
    return level.rpartition(" ")[2]


def scale_word(value: float | None) -> str:
    """Write a loss scale as charts do, as in "2^16"; "-" without one."""
    if value is None or math.isnan(value):
        return "-"
    if value > 0 and math.isfinite(value):
        # A state has six digits of it: fewer than small powers of two have.
        power = 2.0 ** round(math.log2(value))
        value = power if math.isclose(value, power, rel_tol=1e-5) else value
    return plain(scale(value))


def head_and_lines(
    rows: Sequence[Row], width: int, *, is_ascii: bool = False, among: Sequence[Row] | None = None
) -> tuple[Line, list[Line]]:
    """Return the heading of the table, and a line for each of ``rows``.

    Args:
        rows: What is shown.
        width: Cells of the terminal.
        is_ascii: Whether only ASCII can be shown.
        among: All rows there are, by which columns get their widths: they must not jump while
            somebody scrolls.
    """
    widths = _widths(among or rows, width, is_ascii=is_ascii)
    room = width - sum(cells + column.gap for column, cells in widths)
    head = [
        Span(padded(c.title, n, right=c.is_number) + " " * c.gap, Style.QUIET) for c, n in widths
    ]
    head.append(Span("WHAT" if room >= len("WHAT") else "", Style.QUIET))
    return head, [_line(row, widths, room) for row in rows]


def _widths(rows: Sequence[Row], width: int, *, is_ascii: bool) -> list[tuple[Column, int]]:
    """Return the columns that there is room for, each with its cells."""
    every = columns(width, is_ascii=is_ascii)
    cells = {}
    for place, column in enumerate(every):
        longest = max((width_of(column.text(row)) for row in rows), default=0)
        if longest or column.worth > ALWAYS:
            cells[place] = min(max(longest, len(column.title)), column.max_width)
    room, chosen = width, set()
    for place in sorted(cells, key=lambda place: -every[place].worth):
        column, cost = every[place], cells[place] + every[place].gap
        left = MIN_WORDS if column.worth > OTHER else MIN_MORE_WORDS
        if column.worth < ALWAYS and room - cost < left:
            break
        chosen.add(place)
        room -= cost
    return [(every[place], cells[place]) for place in sorted(chosen)]


def _line(row: Row, widths: Sequence[tuple[Column, int]], room: int) -> Line:
    style = STYLES.get(row.level, Style.PLAIN)
    line = []
    for column, cells in widths:
        text = padded(column.text(row), cells, right=column.is_number) + " " * column.gap
        line.append(Span(text, style if column.title in ("STATE", "") else Style.PLAIN))
    line.append(Span(padded(row.lines[1], max(room, 0)), Style.PLAIN))
    return line


def _last(values: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _time(seconds: float) -> str:
    return "-" if math.isnan(seconds) else step_time(seconds)
