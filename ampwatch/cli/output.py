"""What a command prints: as its terminal can show it, and for as long as somebody reads."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ASCII = str.maketrans("▁▂▃▄▅▆▇█─", "_.-~=+*#-")
"""Marks of courses, and rules, where a terminal has none."""


def encodable(text: str) -> str:
    """Return ``text`` as the output can show it, whatever a program calls its runs and modules.

    Where it cannot, courses are drawn in ASCII, and other characters that it lacks are question marks.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, errors="replace").decode(encoding)
    return text


@contextmanager
def piped() -> Iterator[None]:
    """Print in this context; it ends without an error once whoever reads has read enough, as `head` does."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
