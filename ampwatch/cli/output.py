"""What commands share: types of their arguments, and what they print, for a terminal and as long as somebody reads."""

from __future__ import annotations

import argparse
import math
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


_ASCII = str.maketrans("▁▂▃▄▅▆▇█─", "_.-~=+*#-")
"""Marks of histories, and rules, where a terminal has none."""


def encodable(text: str) -> str:
    """Return ``text`` as the output can show it, whatever a program calls its runs and modules.

    Where it cannot, histories are drawn in ASCII, and other characters that it lacks are question marks.
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


def seconds(text: str) -> float:
    """Return a time. Unit: s.

    Raises:
        ArgumentTypeError: If it is no number above 0.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number > 0:
        msg = f"expected a number of seconds > 0, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return number
