"""Reads sentences: whether each number in them is one that is shown beside them, and none refutes them."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable

_NUMBER = re.compile(
    r"(?<![\w.:/=\-^#])(-?\d[\d\u202f,]*(?:\.\d+)?(?:e[+-]?\d+)?)(\s?%|[kMGTmun]?\b(?![\w/]))",
)
_NO_NUMBERS = re.compile(
    r"https?://\S+|(?<![\w.])(?:\d+[dhm] )*\d+(?:\.\d+)?(?:ms|s|m|h|d)\b|[\w-]+~\d+|/d/\S+|\S*#run=\S*|\b(?:b?float|int)\d+\b|\brank \d+|\b[\w.-]+:\d{2,5}\b"
    r"|\d{4}-\d\d-\d\d|\d\d:\d\d(?: UTC)?|2(?:\^|\.0\*\*)-?\d+|\b\w+=\S+|\"[^\"]*\"|`[^`]*`"
)
_UNITS = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "m": 1e-3, "u": 1e-6, "n": 1e-9}

TOLERANCE = 0.006
"""What rounding to three digits may take away."""


def numbers(text: str) -> list[tuple[str, float]]:
    """Return the numbers of a text, as they are written and their values; 12 % is 0.12."""
    found = []
    for written, after in _NUMBER.findall(_NO_NUMBERS.sub(" ", text)):
        unit = after.strip()
        value = float(written.replace("\u202f", "").replace(",", ""))
        value *= 0.01 if unit == "%" else _UNITS.get(unit, 1.0)
        found.append((written + unit, value))
    return found


def strangers(text: str, known: Iterable[float], template: str = "") -> list[str]:
    """Return the numbers of a text that are none of those known.

    Args:
        text: Sentences that somebody reads.
        known: Numbers that are shown beside it.
        template: What of the text is always there, whatever the numbers are.
    """
    all_known = [*known, *(value for _, value in numbers(template))]
    return [written for written, value in numbers(text) if not _is_among(value, all_known)]


def _is_among(value: float, known: Iterable[float]) -> bool:
    return any(math.isclose(value, each, rel_tol=TOLERANCE, abs_tol=1e-300) for each in known)


def matches(text: str, patterns: Iterable[str]) -> list[str]:
    """Return what of the text matches one of the patterns, with the words around it."""
    found = []
    for pattern in patterns:
        if match := re.search(pattern, text):
            around = text[max(0, match.start() - 30) : match.end() + 30]
            found.append(f"{match[0]!r} in {' '.join(around.split())!r}")
    return found


def visible(page: str) -> str:
    """Return what of a page in HTML is read."""
    text = re.sub(r"(?s)<(script|style|svg)\b.*?</\1>|<[^>]+>", " ", page)
    return re.sub(r"\s+", " ", html.unescape(text))
