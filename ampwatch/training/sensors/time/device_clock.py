"""The time between two points of a device's stream, read late and without a wait."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from ampwatch.training.devices import Link, is_capturing
from ampwatch.wire.records import StepPhase

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ampwatch.training.devices import Event
    from ampwatch.wire.records import Phases

MAX_MARKS = 1024
"""Marks of an iteration that are kept: with more of them, as in long accumulation, it is not timed."""

MAX_FLYING = 4
"""Iterations whose marks the device has not passed yet; another one is not timed meanwhile."""


class _Mark(NamedTuple):
    """A point of the stream."""

    place: int  # which moment of the iteration it is; -1 for its beginning
    timer: Event


class _Timed(NamedTuple):
    """The marks of one iteration, in order, on one stream; the last one ends it."""

    step: int  # index of the iteration
    # The stream that the training used when it began. Another one, as of a prefetcher, passes its
    # marks at other times, and what lies between two streams is no duration.
    stream: Any
    marks: list[_Mark]  # the marks
    phases: list[int]  # the phase that begins with each moment; known once the iteration has ended


class DeviceClock:
    """Marks where phases begin on the stream that the training uses.

    A mark is an event with a time. The device passes it when all that was given to it before is done:
    between two marks lies what the device did in a phase, and where it had nothing to do, that wait.

    Raises:
        RuntimeError, TypeError, NotImplementedError, AttributeError: If the backend has no events with a time.

    Cost: 1 to 3 us a mark on the host, nothing on the device. Events are used again.
    """

    def __init__(self, device: torch.device, link: Link | None = None) -> None:
        self._device = device
        self._link = link or Link()
        self._free: list[Any] = []
        self._open: _Timed | None = None
        self._flying: deque[_Timed] = deque()
        # At set-up, where it may raise.
        self._free.append(self._link.make_timer(device))

    @property
    def is_timing(self) -> bool:
        """Whether the open iteration is timed."""
        return self._open is not None

    def begin(self, step: int) -> None:
        """Time iteration ``step``, which begins now."""
        self.drop()
        if len(self._flying) < MAX_FLYING:
            self._open = _Timed(step, self._link.stream(self._device), [], [])
            self.mark(-1)

    def mark(self, place: int) -> None:
        """Mark a moment of the iteration that is timed, if one is.

        Args:
            place: Which moment of the iteration it is, from 0 on.
        """
        timed = self._open
        if timed is None:
            return
        if len(timed.marks) >= MAX_MARKS or is_capturing():
            self.drop()
            return
        timer = self._free.pop() if self._free else self._link.make_timer(self._device)
        timer.record(timed.stream)
        timed.marks.append(_Mark(place, timer))

    def drop(self) -> None:
        """Time the iteration that is open no further, if one is timed."""
        if self._open is not None:
            self._free += [mark.timer for mark in self._open.marks]
            self._open = None

    def end(self, phases: Sequence[int]) -> None:
        """End the iteration that is timed, if one is.

        Args:
            phases: The phase that begins with each of its moments.
        """
        self.mark(len(phases))
        timed, self._open = self._open, None
        if timed is not None:
            timed.phases.extend(phases)
            self._flying.append(timed)

    def arrived(self) -> list[tuple[int, Phases]]:
        """Return the iterations whose marks have all been passed, and their phases. Never waits.

        Returns:
            For each its index and the seconds of each phase, 0 for one without a mark.
        """
        found: list[tuple[int, Phases]] = []
        while self._flying and not is_capturing():
            step, _, marks, phases = self._flying[0]
            if not marks[-1].timer.query():
                break
            self._flying.popleft()
            spent = [0.0] * len(StepPhase)
            for begin, end in pairwise(marks):
                phase = int(StepPhase.REST) if begin.place < 0 else phases[begin.place]
                spent[phase] += max(begin.timer.elapsed_time(end.timer), 0.0) / 1e3
            self._free += [mark.timer for mark in marks]
            found.append((step, tuple(spent)))  # type: ignore[arg-type] # as many as there are phases
        return found
