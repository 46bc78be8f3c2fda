"""Lets scrapes go first: work on many ranks steps aside for them between its pieces. No network."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_ASIDE_SECONDS = 2.0
"""Time that work waits at most, all its pieces together: scrapes without end must not stop pages. It has as
much again once it has worked for as long. Unit: s."""


class Priority:
    """Lets long work step aside while something short and urgent is done.

    Two threads of Python that both have work take turns, and the short one takes twice as long.
    """

    def __init__(self) -> None:
        self._is_free = threading.Event()
        self._is_free.set()
        self._patience = MAX_ASIDE_SECONDS
        self._at = 0.0

    @contextmanager
    def first(self) -> Iterator[None]:
        """Go first; one at a time."""
        self._is_free.clear()
        try:
            yield
        finally:
            self._is_free.set()

    def step_aside(self) -> None:
        """Wait until nothing urgent is under way, between two pieces of work; hold no lock meanwhile."""
        if self._is_free.is_set():
            return
        begin = time.monotonic()
        self._patience = min(MAX_ASIDE_SECONDS, self._patience + begin - self._at)
        self._is_free.wait(max(0.0, self._patience))
        self._at = time.monotonic()
        self._patience -= self._at - begin
