"""What a command is doing, as lines on a terminal, where it takes more than a second.

They go to the error stream, and only if that is a terminal: what a program reads stays the same.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

PATIENCE_SECONDS = 1.0
"""Time after which a person begins to wonder. Unit: s."""


@contextmanager
def progress(
    text: str, stream: TextIO | None = None, seconds: float = PATIENCE_SECONDS
) -> Iterator[Progress]:
    """Show ``text`` while the context is open, once it has been for a while.

    Args:
        text: What is being done, as in "reading reports".
        stream: Where to; the error stream if ``None``. Nothing is shown if it is no terminal.
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
    """Progress of a command.

    Args:
        text: What is being done.
        stream: Where it is shown.

    Attributes:
        stream: Where it is shown.
    """

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
