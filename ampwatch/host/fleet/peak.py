"""Holds the extreme value of the recent past, for readers that come only now and then.

A hold that is reset by reading would be right for one scraper only. This one is
reset by the clock: two windows, the current one and the one before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

HOLD_SECONDS = 60
"""Length of a window: an extreme is held for one to two of them. Unit: s."""

_WINDOW_NS = HOLD_SECONDS * 1_000_000_000


class Peak:
    """The extreme of the values put in during the last one to two windows.

    Args:
        best: ``min`` or ``max``.

    Cost:
        Three attributes, whatever the number of values.
    """

    def __init__(self, best: Callable[[float, float], float]) -> None:
        self._best = best
        self._window = 0
        self._current: float | None = None
        self._previous: float | None = None

    def put(self, value: float, time_ns: int) -> None:
        """Take in ``value`` as of Unix time ``time_ns``; an older time counts as the newest."""
        self._turn(time_ns)
        self._current = self._better(self._current, value)

    def read(self, newest: float, time_ns: int) -> float:
        """Return the extreme as of Unix time ``time_ns``; ``newest`` is what holds right now."""
        self._turn(time_ns)
        return self._better(self._previous, self._better(self._current, newest))

    def _turn(self, time_ns: int) -> None:
        # By the number of the window, not by the time of the last turn: after a gap of several
        # windows the one before is empty, and what is older must not be held on.
        window = time_ns // _WINDOW_NS
        if window > self._window:
            self._previous = self._current if window == self._window + 1 else None
            self._current = None
            self._window = window

    def _better(self, held: float | None, value: float) -> float:
        return value if held is None else self._best(held, value)
