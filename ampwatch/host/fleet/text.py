"""Text from a ring, made safe to hand on."""

from __future__ import annotations


def encodable(text: str) -> str:
    """Return ``text`` with every character that UTF-8 cannot carry replaced by ``?``.

    A lone surrogate in one run's name would otherwise break the scrape of all runs.
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
