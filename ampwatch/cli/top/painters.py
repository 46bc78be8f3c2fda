"""Painting of lines on a terminal: with Rich, which is an extra, or with what every terminal knows."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Protocol

from ampwatch.cli.top.cells import Style

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from rich.live import Live

    from ampwatch.cli.top.cells import Line, Span

RICH_STYLES = {
    Style.PLAIN: "",
    Style.STRONG: "bold",
    Style.QUIET: "bright_black",
    Style.GOOD: "green",
    Style.WARNING: "yellow",
    Style.BAD: "bold red",
    Style.CHOSEN: "reverse",
}
"""How styles look. A screen without colours loses nothing: the words say it all."""

OPENED = "\x1b[?1049h\x1b[?25l"
CLOSED = "\x1b[?25h\x1b[?1049l"
HOME = "\x1b[H"
TO_END_OF_LINE = "\x1b[K"
TO_END_OF_SCREEN = "\x1b[J"
REVERSED = ("\x1b[7m", "\x1b[27m")


class Painter(Protocol):
    """A screen of its own, that covers what was there and gives it back."""

    def open(self) -> None:
        """Cover the terminal."""

    def close(self) -> None:
        """Give back what was there; once more does no harm."""

    def paint(self, lines: Sequence[Line]) -> None:
        """Show ``lines``."""


def painter_for(stream: TextIO) -> Painter:
    """Return the best painter there is for a terminal."""
    if importlib.util.find_spec("rich") is None:
        return PlainPainter(stream)
    return RichPainter(stream)


class PlainPainter:
    """Paints without colours, and without a package.

    Args:
        stream: The terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_open = False

    def open(self) -> None:
        """Cover the terminal."""
        self._write(OPENED)
        self._is_open = True

    def close(self) -> None:
        """Give back what was there."""
        if self._is_open:
            self._write(CLOSED)
            self._is_open = False

    def paint(self, lines: Sequence[Line]) -> None:
        """Write over what is there: to clear it first would flicker."""
        told = (TO_END_OF_LINE + "\r\n").join("".join(map(_plain, line)) for line in lines)
        self._write(f"{HOME}{told}{TO_END_OF_LINE}{TO_END_OF_SCREEN}")

    def _write(self, text: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        self._stream.write(text.encode(encoding, errors="replace").decode(encoding))
        self._stream.flush()


def _plain(span: Span) -> str:
    return span.text.join(REVERSED) if span.style is Style.CHOSEN else span.text


class RichPainter:
    """Paints in the colours that the terminal has, none of them where NO_COLOR is set.

    Args:
        stream: The terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live: Live | None = None

    def open(self) -> None:
        """Cover the terminal."""
        from rich.console import Console  # noqa: PLC0415 - an extra
        from rich.live import Live  # noqa: PLC0415

        console = Console(file=self._stream, highlight=False, markup=False, emoji=False)
        self._live = Live(
            console=console,
            screen=True,
            auto_refresh=False,  # it would be a thread
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def close(self) -> None:
        """Give back what was there."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def paint(self, lines: Sequence[Line]) -> None:
        """Show ``lines``, as text: no markup is read in them."""
        from rich.text import Text  # noqa: PLC0415 - an extra

        if self._live is None:
            return
        console = self._live.console
        console.size = size_of(self._stream)
        text = Text("\n", no_wrap=True, overflow="crop").join(
            Text.assemble(*((span.text, RICH_STYLES[span.style]) for span in line))
            for line in lines
        )
        text.no_wrap, text.overflow = True, "crop"
        self._live.update(text, refresh=True)


def size_of(stream: TextIO) -> tuple[int, int]:
    """Return columns and lines of a terminal as it is now; those of the environment may be older."""
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except OSError:
        columns = lines = 0
    # A terminal that nobody has told its size says 0.
    return columns or 80, lines or 24
