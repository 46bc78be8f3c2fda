"""Progress as a Rich bar; Rich comes with the extra ``ui``. No torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

if TYPE_CHECKING:
    from typing import TextIO

    from ampwatch.demo.display import Status

COLOURS = {"healthy": "green", "faulty": "red"}


class RichDisplay:
    """A bar at the bottom of a terminal.

    Args:
        stream: The terminal.

    Attributes:
        progress: Rich's context manager of the place at the bottom.
    """

    every_seconds = 0.25

    def __init__(self, stream: TextIO) -> None:
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
