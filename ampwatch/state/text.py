"""Text from a ring, made safe to hand on."""

from __future__ import annotations

MAX_DIGITS = 18
"""Digits of a count: below 2^63."""


def encodable(text: str) -> str:
    """Return ``text`` with every character that UTF-8 cannot carry replaced by ``?``.

    A lone surrogate in one run's name would otherwise break the scrape of all runs.
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def whole_number(text: str) -> int | None:
    """Return a fact that should be a count; ``None`` if it is not: a ring can hold any text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None
