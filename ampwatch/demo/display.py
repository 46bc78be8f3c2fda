"""Progress of the demo: a Rich bar on a terminal, else a line now and then. No torch here."""

from __future__ import annotations

import importlib.util
import logging
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, TextIO

from ampwatch.numerics.written import scale_text

TEXT_WIDTH = 92
COLOURS = {"healthy": "green", "faulty": "red"}


class Status(NamedTuple):
    """State of the training, for a display."""

    phase: str  # ``healthy`` or ``faulty``
    share: float  # how much of the phase is behind us, from 0 to 1
    step: int
    loss: float
    loss_scale: float  # the newest loss scale
    skipped: int  # steps skipped so far
    step_seconds: float  # what a step takes lately. Unit: s

    def __str__(self) -> str:
        return (
            f"step {self.step}  loss {self.loss:.2f}  scale {scale_text(self.loss_scale)}"
            f"  skipped {self.skipped}  {self.step_seconds * 1e3:.0f} ms/step"
        )


class Display:
    """Display of the progress: a line now and then, for a file, a pipe, a terminal without Rich."""

    every_seconds = 5.0
    """Time between two status reports. Unit: s."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def say(self, text: str) -> None:
        """Print ``text`` for good."""
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def show(self, status: Status) -> None:
        """Show ``status``."""
        self.say(f"{status.phase} phase {status.share:4.0%} over  {status}")


@contextmanager
def open_display(stream: TextIO) -> Iterator[Display]:
    """Yield the best display that ``stream`` can have, and what ampwatch logs on it."""
    with ExitStack() as undo:
        display = Display(stream)
        if stream.isatty() and importlib.util.find_spec("rich") is not None:
            display = rich = RichDisplay(stream)
            undo.enter_context(rich.progress)
        handler = _Warnings(display)
        logger = logging.getLogger("ampwatch")
        undo.callback(logger.setLevel, logger.level)
        undo.callback(logger.removeHandler, handler)
        logger.addHandler(handler)
        # The demo says itself where its page is.
        logger.setLevel(logging.WARNING)
        yield display


class RichDisplay(Display):
    """A bar at the bottom of a terminal, drawn by Rich, which comes with the extra ``ui``."""

    every_seconds = 0.25

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        from rich.console import Console  # noqa: PLC0415 - an extra
        from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

        # Rich's context manager of the place at the bottom.
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[status]}"),
            console=Console(file=stream),
            expand=True,
            auto_refresh=False,  # it would be a thread, in the way of the training
        )
        self._task = self.progress.add_task("", total=1.0, status="starting")

    def say(self, text: str) -> None:
        """Print ``text`` above the bar."""
        # Whole: what the terminal breaks itself can still be clicked and copied.
        self.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, status: Status) -> None:
        """Move the bar."""
        colour = COLOURS[status.phase]
        self.progress.update(
            self._task,
            description=f"[{colour}]{status.phase}[/]",
            completed=status.share,
            status=str(status),
            refresh=True,
        )


class _Warnings(logging.Handler):
    """Shows what ampwatch logs without tearing the progress apart."""

    def __init__(self, display: Display) -> None:
        super().__init__(logging.WARNING)
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        """Say it in lines of readable length."""
        words = record.getMessage()
        # A line about a finding says by itself whose it is.
        text = words if words.startswith(record.name) else f"{record.name}: {words}"
        self._display.say(textwrap.fill(text, TEXT_WIDTH))
