"""Time that passes where a test says so: what a training does takes as long as it is told to."""

from __future__ import annotations

import time

import pytest

from ampwatch.training import session
from ampwatch.training.iteration.ledger import Clock

READING_NS = 1
"""Time that passes between two readings, so that no time stands still. Unit: ns."""


class PlayedTime:
    """The time of a training. Unit: s.

    Attributes:
        now_ns: The time. Unit: ns.
    """

    def __init__(self) -> None:
        self.now_ns = 10**9

    def __call__(self) -> int:
        self.now_ns += READING_NS
        return self.now_ns

    def take(self, seconds: float) -> None:
        """Let time pass."""
        self.now_ns += round(seconds * 1e9)


def play_time(monkeypatch: pytest.MonkeyPatch) -> PlayedTime:
    """Have trainings that are watched from now on, and ``time.sleep``, go by a played time."""
    played = PlayedTime()
    monkeypatch.setattr(session, "Clock", lambda: Clock(monotonic_ns=played, unix_ns=played))
    monkeypatch.setattr(time, "sleep", played.take)
    return played
