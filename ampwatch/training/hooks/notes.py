"""Notes of when something happens, for who wants to know no more: a dozen in a plain step.

A part of the extension module (`native/notes.c`), and here a second time for where that is not built,
and for a clock that is not the system's.
"""

from __future__ import annotations

from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from ampwatch.training.native import timed

if TYPE_CHECKING:
    from collections.abc import Callable


class PythonNotes:
    """Takes down moments.

    Args:
        keep: Takes the four values of each: when (unit ns), on which thread (``threading.get_ident``), what,
            and what is told with it.
        now: The clock. Unit: ns.
    """

    def __init__(
        self, keep: Callable[[tuple[Any, ...]], object], now: Callable[[], int] = perf_counter_ns
    ) -> None:
        self._keep = keep
        self._now = now

    def note(self, kind: Any, given: Any = 0, at: int | None = None) -> None:
        """Take down a moment.

        Args:
            kind: The kind of event, or what else a sensor notes.
            given: What is told with it: of ``BatchAwaited`` the workers of the loader, of
                ``IterationClosed`` the iteration.
            at: When it happened, if not now.
        """
        self._keep((self._now() if at is None else at, get_ident(), kind, given))


def noted_to(keep: Callable[[tuple[Any, ...]], object], now: Callable[[], int]) -> Any:
    """Return what takes down moments by a clock. See ``PythonNotes.note``."""
    if timed is None or now is not perf_counter_ns:
        return PythonNotes(keep, now).note
    return timed.Notes(keep).note
