"""The index of the open iteration and the thread that trains, shared by all sensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _nothing() -> None:
    pass


class OpenIteration:
    """The open iteration. The ledger moves it on; all others read it.

    Attributes:
        step: Index of the open iteration.
        thread: Identity of the thread that trains, as of the last iteration; 0 before the first.
        take_over: Has the ledger go on with an iteration that was recorded in C until now. Whoever finds
            in the middle of one that it is no quiet one calls it before measuring anything.
    """

    __slots__ = ("step", "take_over", "thread")

    def __init__(self, step: int = 0) -> None:
        self.step = step
        self.thread = 0
        self.take_over: Callable[[], None] = _nothing
