"""The open iteration, as everybody in the training process knows it."""

from __future__ import annotations


class OpenIteration:
    """Which iteration is open, and who trains. The ledger keeps it; all others read it.

    Attributes:
        step: Index of the open iteration.
        thread: Identity of the thread that trains, as of the last iteration; 0 before the first.
    """

    __slots__ = ("step", "thread")

    def __init__(self, step: int = 0) -> None:
        self.step = step
        self.thread = 0
