"""The index of the open iteration and the thread that trains, shared by all sensors."""

from __future__ import annotations


class OpenIteration:
    """The open iteration. The ledger moves it on; all others read it.

    Attributes:
        step: Index of the open iteration.
        thread: Identity of the thread that trains, as of the last iteration; 0 before the first.
    """

    __slots__ = ("step", "thread")

    def __init__(self, step: int = 0) -> None:
        self.step = step
        self.thread = 0
