"""Births of non-finite values, followed as it has to be done where the values lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.listener import OpPlace
    from ampwatch.training.sensors.births.birth_log import BirthLog
    from ampwatch.training.sensors.births.births import BirthListener


class BirthFollower:
    """Reads values at once as long as all of them are in host memory, and later from then on.

    Args:
        at_once: For values in host memory.
        later: For all others.
        is_host: Whether the parameters are in host memory.
    """

    def __init__(self, at_once: BirthListener, later: BirthLog, *, is_host: bool) -> None:
        self._at_once, self._later = at_once, later
        self._is_host = is_host
        self._active: BirthListener | BirthLog = at_once if is_host else later

    def begin(self, step: int) -> None:
        """Iteration ``step`` begins."""
        self._active = self._at_once if self._is_host else self._later
        self._active.begin(step)

    def note(self, call: OpCall, place: OpPlace) -> None:
        """An op has returned."""
        if self._is_host or self._active is self._later:
            self._active.note(call, place)
            if self._at_once.meets_device and self._is_host:
                # What was read so far is not in the log: this iteration is lost.
                self._is_host = False
                self._later.give_up()

    def end(self) -> None:
        """The iteration is over."""
        self._active.end()
