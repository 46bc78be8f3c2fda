"""The user's exception as text. It is never kept: that would keep its tensors alive."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_CAUSES = 4
"""Exceptions of a chain (``raise ... from``) that are examined."""

MAX_FRAMES = 24
MAX_CHARACTERS = 8000
MAX_WORDS = 2000


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, and those that it was raised from, the newest first."""
    for _ in range(MAX_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__


def words_of(error: BaseException) -> str:
    """Return ``Type: text`` of an exception, also of one that has no text or cannot say it."""
    text = ": ".join(filter(None, (type(error).__name__, text_of(error))))
    return text if len(text) <= MAX_WORDS else f"{text[:MAX_WORDS]}..."


def text_of(error: BaseException) -> str:
    """Return the text of an exception, also of one that cannot say it."""
    try:
        return str(error)
    except Exception as other:  # noqa: BLE001 - the user's class may override anything
        return f"(its text could not be had: {type(other).__name__})"


def traceback_of(error: BaseException | None) -> str:
    """Return where ``error`` came from, as Python prints it; empty for an ordinary end.

    Nothing that the exception does when it is asked for its text is raised.

    Args:
        error: What ended the training; ``None`` if nothing did.

    Cost:
        Some ms: source lines are read from their files.
    """
    if error is None or isinstance(error, (SystemExit, KeyboardInterrupt)):
        return ""
    try:
        lines = traceback.format_exception(error, limit=-MAX_FRAMES)
    except Exception as other:  # noqa: BLE001 - the user's class may override anything
        return f"{words_of(error)} (no traceback: {type(other).__name__})"
    text = "".join(lines)
    return text if len(text) <= MAX_CHARACTERS else f"...\n{text[-MAX_CHARACTERS:]}"
