"""What a command is doing, on a terminal, where it takes more than a second: Rich's spinner, else a line.

It goes to the error stream, and only if that is a terminal: what a program reads stays the same.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from rich.status import Status

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
    if not shown.stream.isatty():
        yield shown
        return
    timer = threading.Timer(seconds, shown.start)
    timer.daemon = True
    timer.start()
    try:
        yield shown
    finally:
        timer.cancel()
        shown.end()


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
        self._lock = threading.Lock()
        self._status: Status | None = None
        self._is_shown = False
        self._is_over = False

    def update(self, text: str) -> None:
        """Say what is being done now."""
        with self._lock:
            self._text = text
            if self._is_shown:
                self._show()

    def start(self) -> None:
        """Begin to show it, unless it is over meanwhile."""
        with self._lock:
            if not self._is_over:
                self._is_shown = True
                self._show()

    def end(self) -> None:
        """Take away what is shown; lines stay."""
        with self._lock:
            self._is_over = True
            if self._status is not None:
                self._status.stop()

    def _show(self) -> None:
        if importlib.util.find_spec("rich") is None:
            self.stream.write(f"ampwatch: {self._text} ...\n")
            self.stream.flush()
            return
        from rich.console import Console  # noqa: PLC0415 - an extra
        from rich.text import Text  # noqa: PLC0415

        text = Text(f"{self._text} ...", no_wrap=True, overflow="ellipsis")
        if self._status is None:
            self._status = Console(file=self.stream).status(text)
            self._status.start()
        else:
            self._status.update(text)
