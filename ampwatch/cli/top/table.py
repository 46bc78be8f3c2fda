"""The table of ranks: as many columns as a terminal has room for, the most important ones first."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from textwrap import wrap
from typing import NamedTuple

from ampwatch.cli.output import MAX_WIDTH
from ampwatch.report.one_line import printable
from ampwatch.report.rank_list import Lines, RankList, RankRow
from ampwatch.report.short import labelled
from ampwatch.report.verdict import Level
from ampwatch.report.words import plain, plural, scale, step_time

Line = list[tuple[str, str]]
"""A line of a screen: texts, each with a style of Rich's. Without colours it loses nothing."""

STRONG, QUIET, BAD, CHOSEN = "bold", "bright_black", "bold red", "reverse"
STYLES = {
    Level.FAILING: BAD,
    Level.BROKEN: BAD,
    Level.FAILED: BAD,
    Level.STALE: "yellow",
    Level.ATTENTION: "yellow",
    Level.HEALTHY: "green",
    Level.FINISHED: QUIET,
}

BLOCKS = "▁▂▃▄▅▆▇█"
"""Marks from the lowest to the highest value."""

NOT_FINITE = "!"
"""Mark of a value that is NaN or infinite."""

MAX_COLUMN = 24
WIDE = 110
"""Cells from which on histories are twice as long."""

ORDERS: Mapping[str, Callable[[RankRow], tuple[object, ...]]] = {
    "trouble": lambda row: (row.level.badness, not row.is_shown, row.run, row.rank),
    "run and rank": lambda row: row.identity,
    "slowest": lambda row: (-(newest(row.seconds) or 0.0), row.identity),
}
"""Sort keys of the table, by their names."""


class Column(NamedTuple):
    """A column of the table."""

    title: str  # its heading
    text: Callable[[RankRow], str]  # returns what a row has there
    words: int  # cells of what is wrong for which it makes room; always there if 0
    is_number: bool = False  # stands on the right
    gap: int = 2  # cells between it and the next one


@lru_cache(maxsize=8192)  # ranks mostly say the same, and say it again each second
def clean(text: str) -> str:
    """Return ``text`` so that it moves no cursor and takes no colour."""
    # Plain first: to split(), the narrow spaces between digits are spaces as well.
    return printable(" ".join(plain(text).split()))


def once(ranks: RankList, ended: str, width: int) -> str:
    """Return a list, ``clean``, as plain text: the table, then the four lines of each run in trouble.

    ``ended`` is what to say of runs that the daemon does not show any more; a line has ``width`` cells.
    """
    rows = sorted(ranks.ranks, key=ORDERS["trouble"])
    if not rows:
        hint = "; a training that calls ampwatch.monitor() appears here by itself"
        return f"{summary(rows)}{hint}{ended}"
    lines = table(rows, rows, width)
    for run in ranks.runs:
        if run.level.badness <= Level.ATTENTION.badness:
            lines += [[], *headline_lines(run.run, run.level, run.headline, width)]
    texts = ("".join(text for text, _ in fitted(line, width)).rstrip() for line in lines)
    return "\n".join([*wrap(summary(rows), width), *texts])


def summary(rows: Sequence[RankRow]) -> str:
    """Say how many ranks there are and how they go, the worst first."""
    if not rows:
        return "no run"
    ordered = sorted((row.level for row in rows), key=lambda level: level.badness)
    levels = ", ".join(f"{n} {level.value}" for level, n in Counter(ordered).items())
    runs = plural(len({row.run for row in rows}), "run")
    return plain(f"{plural(len(rows), 'rank')} of {runs}: {levels}")


def headline_lines(who: str, level: Level, lines: Lines, width: int) -> list[Line]:
    """Return a verdict in its four lines, each with what it is about, none of them cut."""
    style = STYLES.get(level, "")
    labels = labelled(who, lines, min(width, MAX_WIDTH))
    return [[(label, QUIET), (text, "" if label else style)] for label, text in labels]


def table(rows: Sequence[RankRow], among: Sequence[RankRow], width: int) -> list[Line]:
    """Return the heading of the table, and a line of ``width`` cells for each of ``rows``.

    Columns get their widths by all rows there are: they must not jump while somebody scrolls.
    """
    room = width
    shown: list[tuple[Column, int]] = []
    for column in _columns(16 if width >= WIDE else 8):
        longest = max(width_of(column.text(row)) for row in among)
        cells = min(max(longest, len(column.title)), MAX_COLUMN)
        if not longest and column.words:
            continue
        if column.words and room - cells - column.gap < column.words:
            break
        shown.append((column, cells))
        room -= cells + column.gap
    head = [(padded(c.title, n, right=c.is_number) + " " * c.gap, QUIET) for c, n in shown]
    lines: list[Line] = [[*head, ("WHAT" if room >= len("WHAT") else "", QUIET)]]
    for row in rows:
        line: Line = []
        for column, cells in shown:
            text = padded(column.text(row), cells, right=column.is_number) + " " * column.gap
            line.append((text, STYLES.get(row.level, "") if column.title in ("STATE", "") else ""))
        lines.append([*line, (padded(row.headline[1], max(room, 0)), "")])
    return lines


def _columns(cells: int) -> tuple[Column, ...]:
    """Return all columns but the last one, what is wrong, the most important ones first.

    A history has so many cells.
    """

    def last(values: Sequence[float | None], write: Callable[[float], str]) -> str:
        value = newest(values)
        return "-" if value is None else write(value)

    return (
        Column("STATE", lambda row: row.level.label, 0),
        Column("RUN", lambda row: row.run, 0),
        Column("RANK", lambda row: str(row.rank), 0, is_number=True),
        Column("STEP", lambda row: "-" if row.step < 0 else str(row.step), 20, is_number=True),
        Column(
            "SCALE",
            lambda row: last(row.scale, lambda value: plain(scale(value))),
            20,
            is_number=True,
            gap=1,
        ),
        Column("", lambda row: spark(row.scale, cells, is_log=True), 20),
        Column("LOSS", lambda row: last(row.loss, "{:.4g}".format), 20, is_number=True, gap=1),
        Column("", lambda row: spark(row.loss, cells), 20),
        Column("GPU", lambda row: row.gpu, 40),
        Column("SKIPPED", lambda row: row.figures.get("Skipped", ("", ""))[0], 40, is_number=True),
        Column("STEP TIME", lambda row: last(row.seconds, step_time), 40, is_number=True),
    )


def newest(values: Sequence[float | None]) -> float | None:
    """Return the last value that is known."""
    return next((value for value in reversed(values) if value is not None), None)


def width_of(text: str) -> int:
    """Return how many cells ``text`` takes."""
    return sum(map(_cells, text))


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, cells: int) -> str:
    """Return as much of ``text`` as fits into ``cells``; two dots end what was cut."""
    if width_of(text) <= cells:
        return text
    ends = [end for end in range(len(text)) if width_of(text[:end]) <= cells - 2]
    return (text[: ends[-1]].rstrip() + "..") if ends else "." * cells


def fitted(line: Line, cells: int) -> Line:
    """Return ``line`` cut to ``cells``."""
    kept: Line = []
    for text, style in line:
        kept.append((cut(text, cells), style))
        cells = max(cells - width_of(text), 0)
    return kept


def padded(text: str, cells: int, *, right: bool = False) -> str:
    """Return ``text`` in exactly ``cells``, cut or with spaces before (``right``) or after it."""
    fitting = cut(text, cells)
    gap = " " * (cells - width_of(fitting))
    return gap + fitting if right else fitting + gap


def spark(values: Sequence[float | None], width: int, *, is_log: bool = False) -> str:
    """Draw ``values`` in at most ``width`` characters, the newest last.

    Where there are more values than characters each stands for some of them: their mean, or that
    one of them was not finite, which no mean may hide.

    Args:
        values: In order; ``None`` where there is none, which leaves a gap.
        width: Characters.
        is_log: Whether doubling is a step, as for loss scales; what is not positive is a gap then.
    """
    groups = [_joined(group) for group in _groups(values, width)]
    heights = [_log(value) for value in groups] if is_log else groups
    finite = [height for height in heights if height is not None and math.isfinite(height)]
    low, span = (min(finite), max(finite) - min(finite)) if finite else (0.0, 0.0)

    def mark(height: float | None) -> str:
        if height is None:
            return " "
        if not math.isfinite(height):
            return NOT_FINITE
        # What never moved stands in the middle: it is neither high nor low.
        share = (height - low) / span if span > 0 else 0.5
        return BLOCKS[min(int(share * len(BLOCKS)), len(BLOCKS) - 1)]

    return "".join(map(mark, heights))


def _groups(values: Sequence[float | None], width: int) -> list[Sequence[float | None]]:
    """Cut ``values`` into at most ``width`` runs of equal length; the first may be shorter."""
    size = max(1, math.ceil(len(values) / max(width, 1)))
    first = len(values) % size
    cuts = [0] * bool(first) + list(range(first, len(values) + 1, size))
    return [values[a:b] for a, b in pairwise(cuts)]


def _joined(group: Sequence[float | None]) -> float | None:
    """Return the mean of what is known, or the first value that is not finite."""
    known = [value for value in group if value is not None]
    bad = next((value for value in known if not math.isfinite(value)), None)
    if bad is not None or not known:
        return bad
    return math.fsum(known) / len(known)


def _log(value: float | None) -> float | None:
    if value is None or math.isnan(value) or math.isinf(value):
        return value
    return math.log2(value) if value > 0 else None
