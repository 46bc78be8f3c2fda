"""The report at the end of a run: one of the ranks of a machine that end together prints it.

Each rank leaves its box beside the file by which they agree (``said.py``), and appends that it has
done so. A rank with something to report then waits for the others, up to a second. When all that
live are there the lowest one speaks, for all whose boxes were there before it said so. Those that
come later add what differs. Nobody relies on a rank that lives to speak later: a launcher kills
the others when one has failed.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ampwatch.errors import ReportError
from ampwatch.report.report import render_boxes, render_more
from ampwatch.runtime import ring_directories
from ampwatch.training.said import join
from ampwatch.wire.blackbox import files
from ampwatch.wire.blackbox.box import DIED, Box
from ampwatch.wire.records import RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ampwatch.settings import Settings
    from ampwatch.training.said import Said
    from ampwatch.wire.records import RunIdentity

MAX_SECONDS = 1.0
"""Time that the end of a program waits for the other ranks at most. Unit: s."""

PAUSE_SECONDS = 0.01
"""Time from one look at the file to the next. Unit: s."""

READY = "box"


class LastWord:
    """One rank's part in the report of a run.

    Args:
        settings: Where the ranks agree.
        identity: The rank.
        clock: Monotonic time. Unit: s.
        sleep: Waits a number of seconds.
    """

    def __init__(
        self,
        settings: Settings,
        identity: RunIdentity,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        places = ring_directories(settings.ring_dir, settings.runtime_dir)
        self._said = join(places, identity, "report")
        self._identity = identity
        self._clock = clock
        self._sleep = sleep

    @property
    def is_shared(self) -> bool:
        """Whether there are other ranks to agree with."""
        return self._said is not None

    def leave(self) -> None:
        """Have nothing to say."""
        said, self._said = self._said, None
        if said is not None:
            with suppress(OSError):
                said.close()

    def speak(self, box: Box, until_s: float) -> str:
        """Return what this rank is to print; empty if others print it, or there is nothing.

        Args:
            box: What this rank has to report.
            until_s: Monotonic time up to which it may wait for the others. Unit: s.
        """
        said = self._said
        text = render_boxes([box]) if box.has_alarm else ""
        if said is None:
            return text
        # Whatever fails, each rank speaks for itself: twice is better than never.
        with suppress(OSError):
            # The text needs none of the ranges, which are most of a box.
            files.write(said.boxes, replace(box, ranges=[]), self._identity.world_size)
            said.found(READY)
            # A rank that found nothing keeps no healthy program from ending.
            text = self._agreed(said, until_s) if text else ""
        self.leave()
        return text

    def _agreed(self, said: Said, until_s: float) -> str:
        me = self._identity.rank
        while True:
            turn = _turns(said)
            spoken_for = said.finders(READY, said=_claim(turn - 1)) if turn else []
            if me in spoken_for:
                return ""
            ready = said.finders(READY)
            present = said.present()
            absent = set(present).difference(ready)
            first = min(set(present).difference(spoken_for).intersection(ready), default=me)
            if (me == first and not absent) or self._clock() >= until_s:
                if said.says(_claim(turn)):
                    return self._text(said, turn, spoken_for)
                continue
            self._sleep(PAUSE_SECONDS)

    def _text(self, said: Said, turn: int, spoken_for: list[int]) -> str:
        boxes = {box.identity.rank: box for box in _boxes(said)}
        known = [boxes[rank] for rank in spoken_for if rank in boxes]
        mine = said.finders(READY, said=_claim(turn))
        new = [boxes[rank] for rank in mine if rank in boxes and rank not in spoken_for]
        now_ns = time.time_ns()
        gone = [
            # When it ended nobody knows: that it was the first to is not to be concluded.
            Box(
                replace(self._identity, rank=rank, local_rank=rank, pid=0, started_ns=now_ns),
                RunState.FAILED,
                DIED,
                ended_ns=now_ns,
            )
            for rank in said.lost()
            if rank not in boxes
        ]
        if known:
            return render_more(new, [*known, *gone])
        return render_boxes(sorted([*new, *gone], key=lambda box: box.identity.rank))


def _claim(turn: int) -> str:
    return f"report {turn}"


def _turns(said: Said) -> int:
    """Return how many ranks have spoken."""
    turn = 0
    while said.is_said(_claim(turn)):
        turn += 1
    return turn


def _boxes(said: Said) -> Iterable[Box]:
    for path in files.paths(said.boxes):
        with suppress(ReportError):
            yield from files.read(path)
