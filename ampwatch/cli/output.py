"""What commands share: types of their arguments, and what they print, for a terminal and as long as somebody reads."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import textwrap
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

PATIENCE_SECONDS = 1.0
"""Time after which a person begins to wonder. Unit: s."""

_Number = TypeVar("_Number", int, float)

MAX_WIDTH, MIN_WIDTH = 100, 40
"""Characters in a line of text."""

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
def progress(
    text: str, stream: TextIO | None = None, seconds: float = PATIENCE_SECONDS
) -> Iterator[Progress]:
    """Show ``text``, as in "reading reports", while the context is open, once it has been for a while.

    Args:
        text: What is being done.
        stream: Where to; the error stream if ``None``: what a program reads stays the same. Nothing is
            shown if it is no terminal.
        seconds: How long nothing is shown. Unit: s.
    """
    shown = Progress(text, sys.stderr if stream is None else stream)
    timer = threading.Timer(seconds, shown.start)
    timer.daemon = True
    if shown.stream.isatty():
        timer.start()
    try:
        yield shown
    finally:
        timer.cancel()


class Progress:
    """What a command is doing, as lines on a terminal."""

    def __init__(self, text: str, stream: TextIO) -> None:
        self.stream = stream
        self._text = text
        self._is_shown = False

    def update(self, text: str) -> None:
        """Say what is being done now."""
        self._text = text
        if self._is_shown:
            self._show()

    def start(self) -> None:
        """Begin to show it."""
        self._is_shown = True
        self._show()

    def _show(self) -> None:
        self.stream.write(f"ampwatch: {self._text} ...\n")
        self.stream.flush()
