"""What commands share: types of their arguments, and what they print, for a terminal and as long as somebody reads."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

PATIENCE_SECONDS = 1.0
"""Time after which a person begins to wonder. Unit: s."""

_Number = TypeVar("_Number", int, float)

MAX_WIDTH, MIN_WIDTH = 100, 40
"""Characters in a line of text; longer ones are hard to read."""

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


def width(most: int = MAX_WIDTH) -> int:
    """Return how long the lines of a text are: as those of the terminal, but readable."""
    return min(max(shutil.get_terminal_size((most, 40)).columns, MIN_WIDTH), most)


def hanging(text: str, width: int, indent: int) -> list[str]:
    """Return a text in lines, of which all but the first are indented, as what is beside a column."""
    return textwrap.wrap(
        text,
        max(width, 2 * indent),
        subsequent_indent=" " * indent,
        break_long_words=False,  # of commands and paths
        break_on_hyphens=False,
    )


def in_colours() -> bool:
    """Return whether the output is a terminal, and Rich is there to colour it."""
    return sys.stdout.isatty() and importlib.util.find_spec("rich") is not None


def above_zero(kind: type[_Number], expected: str) -> Callable[[str], _Number]:
    """Return a type of arguments, for argparse: numbers above 0.

    Args:
        kind: ``int`` or ``float``.
        expected: What is expected, in words, for who gives something else.
    """

    def number(text: str) -> _Number:
        with suppress(ValueError):
            if (value := kind(text)) > 0:  # which no NaN is
                return value
        msg = f"expected {expected}, got {text!r}"
        raise argparse.ArgumentTypeError(msg)

    return number


seconds = above_zero(float, "a number of seconds > 0")


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Show ``text``, as in "reading reports", on the error stream once this context is open for a while.

    Only if that is a terminal: what a program reads stays the same. What it yields is called with what
    is being done now.
    """
    stream, is_shown = sys.stderr, False

    def show() -> None:
        nonlocal is_shown
        is_shown = True
        stream.write(f"ampwatch: {text} ...\n")
        stream.flush()

    def update(words: str) -> None:
        nonlocal text
        text = words
        if is_shown:
            show()

    timer = threading.Timer(PATIENCE_SECONDS, show)
    timer.daemon = True
    if stream.isatty():
        timer.start()
    try:
        yield update
    finally:
        timer.cancel()
