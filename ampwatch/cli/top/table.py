"""The table of ranks: as many columns as a terminal has room for, the most important ones first."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from ampwatch.cli.top.rows import badness_of, cleaned, headline_of, newest, rows_of
from ampwatch.report.short import labelled
from ampwatch.report.verdict import Level
from ampwatch.report.words import plain, plural, scale, step_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ampwatch.cli.top.rows import Data, Row


Line = list[tuple[str, str]]
"""A line of a screen: texts, each with a style of Rich's. Without colours it loses nothing."""

STRONG, QUIET, BAD, CHOSEN = "bold", "bright_black", "bold red", "reverse"
STYLES = {
    Level.FAILING.value: BAD,
    Level.BROKEN.value: BAD,
    Level.FAILED.value: BAD,
    Level.STALE.value: "yellow",
    Level.ATTENTION.value: "yellow",
    Level.HEALTHY.value: "green",
    Level.FINISHED.value: QUIET,
}

BLOCKS = "▁▂▃▄▅▆▇█"
"""Marks from the lowest to the highest value."""

NOT_FINITE = "!"
"""Mark of a value that is NaN or infinite."""

MAX_WIDTH = 100
"""Cells of a line of prose; longer ones are hard to read."""

MAX_COLUMN = 24
WIDE = 110
"""Cells from which on courses are twice as long."""

ORDERS: Mapping[str, Callable[[Row], tuple[object, ...]]] = {
    "trouble": lambda row: (badness_of(row.level), not row.is_speaker, row.run, row.rank),
    "run and rank": lambda row: row.identity,
    "slowest": lambda row: (-(newest(row.courses["seconds"]) or 0.0), row.identity),
}
"""Sort keys of the table, by their names."""


class Column(NamedTuple):
    """A column of the table.

    Attributes:
        title: Its heading.
        text: Returns what a row has there.
        words: Cells of what is wrong for which it makes room; always there if 0.
        is_number: Stands on the right.
        gap: Cells between it and the next one.
    """

    title: str
    text: Callable[[Row], str]
    words: int
    is_number: bool = False
    gap: int = 2


def once(state: Data, width: int) -> str:
    """Return a state as plain text: the table, then the four lines of each run in trouble.

    Args:
        state: That of the daemon; and as ``ended`` what to say of runs that it does not show any more.
        width: Cells of a line.
    """
    state = cleaned(state)
    rows = sorted(rows_of(state), key=ORDERS["trouble"])
    if not rows:
        hint = "; a training that calls ampwatch.monitor() appears here by itself"
        return f"{summary(rows)}{hint}{state.get('ended', '')}"
    lines = table(rows, rows, width)
    for run, data in state["runs"].items():
        if badness_of(data.get("level", "")) <= Level.ATTENTION.badness:
            lines += [[], *headline_lines(run, data, width)]
    texts = ("".join(text for text, _ in fitted(line, width)).rstrip() for line in lines)
    return "\n".join([*wrap(summary(rows), width), *texts])


def summary(rows: Sequence[Row]) -> str:
    """Say how many ranks there are and how they go, the worst first."""
    if not rows:
        return "no run"
    ordered = sorted((row.level for row in rows), key=badness_of)
    levels = ", ".join(f"{n} {level}" for level, n in Counter(ordered).items())
    runs = plural(len({row.run for row in rows}), "run")
    return plain(f"{plural(len(rows), 'rank')} of {runs}: {levels}")


def headline_lines(who: str, data: Data, width: int) -> list[Line]:
    """Return a verdict in its four lines, each with what it is about, none of them cut."""
    style = STYLES.get(data.get("level", ""), "")
    labels = labelled(who, headline_of(data), min(width, MAX_WIDTH))
    return [[(label, QUIET), (text, "" if label else style)] for label, text in labels]


def table(rows: Sequence[Row], among: Sequence[Row], width: int) -> list[Line]:
    """Return the heading of the table, and a line for each of ``rows``.

    Args:
        rows: What is shown.
        among: All rows there are, by which columns get their widths: they must not jump while
            somebody scrolls.
        width: Cells of the terminal.
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
        lines.append([*line, (padded(headline_of(row.data)[1], max(room, 0)), "")])
    return lines


def _columns(cells: int) -> tuple[Column, ...]:
    """Return all columns but the last one, what is wrong, the most important ones first.

    Args:
        cells: Those of a course.
    """

    def last(row: Row, name: str, write: Callable[[float], str]) -> str:
        value = newest(row.courses[name])
        return "-" if value is None else write(value)

    def course(row: Row, name: str) -> str:
        return spark(row.courses[name], cells, is_log=name == "scale")

    return (
        Column("STATE", lambda row: row.level.rpartition(" ")[2], 0),
        Column("RUN", lambda row: row.run, 0),
        Column("RANK", lambda row: str(row.rank), 0, is_number=True),
        Column("STEP", lambda row: "-" if row.step < 0 else str(row.step), 20, is_number=True),
        Column("SCALE", lambda row: last(row, "scale", _scale), 20, is_number=True, gap=1),
        Column("", lambda row: course(row, "scale"), 20),
        Column("LOSS", lambda row: last(row, "loss", "{:.4g}".format), 20, is_number=True, gap=1),
        Column("", lambda row: course(row, "loss"), 20),
        Column("GPU", lambda row: row.gpu, 40),
        Column("SKIPPED", lambda row: row.figures.get("Skipped", ("", ""))[0], 40, is_number=True),
        Column("STEP TIME", lambda row: last(row, "seconds", step_time), 40, is_number=True),
    )


def _scale(value: float) -> str:
    """Write a loss scale as charts do, as in "2^16"."""
    if value > 0 and math.isfinite(value):
        # A state has six digits of it: fewer than small powers of two have.
        power = 2.0 ** round(math.log2(value))
        value = power if math.isclose(value, power, rel_tol=1e-5) else value
    return plain(scale(value))


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
