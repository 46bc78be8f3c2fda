"""Text in cells of a terminal: how wide it is, how it is cut, and in what style it is shown.

What comes from other programs, as names and messages do, is made printable before it gets here.
"""

from __future__ import annotations

import unicodedata
from enum import Enum
from typing import NamedTuple

from ampwatch.report.one_line import printable
from ampwatch.report.words import plain


class Style(Enum):
    """Styles by what they mean; how they look is up to who paints."""

    PLAIN = "plain"
    STRONG = "strong"
    QUIET = "quiet"
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"
    CHOSEN = "chosen"


class Span(NamedTuple):
    """Text in one style.

    Attributes:
        text: Printable, without a line break.
        style: Its style.
    """

    text: str
    style: Style = Style.PLAIN


Line = list[Span]
"""One line of a screen."""


def clean(text: object) -> str:
    """Return ``text`` in one line that moves no cursor and takes no colour, whatever it holds."""
    # Plain first: to split(), the narrow spaces between digits are spaces as well.
    return printable(" ".join(plain(str(text)).split()))


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
    kept, room = "", cells - min(2, cells)
    for character in text:
        room -= _cells(character)
        if room < 0:
            break
        kept += character
    return kept.rstrip() + ".." if cells >= 2 else "." * cells


def padded(text: str, cells: int, *, right: bool = False) -> str:
    """Return ``text`` in exactly ``cells``, cut or with spaces before (``right``) or after it."""
    fitting = cut(text, cells)
    gap = " " * (cells - width_of(fitting))
    return gap + fitting if right else fitting + gap


def fitted(line: Line, cells: int) -> Line:
    """Return ``line`` cut to ``cells``."""
    kept: Line = []
    for text, style in line:
        fitting = cut(text, cells)
        kept.append(Span(fitting, style))
        cells -= width_of(fitting)
        if fitting != text or cells <= 0:
            break
    return kept


def text_of(line: Line) -> str:
    """Return a line without its styles."""
    return "".join(span.text for span in line).rstrip()
