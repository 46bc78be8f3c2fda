"""Requests to this training, which commands as ``ampwatch trace`` put beside the ring."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from ampwatch.guard import Suppress
from ampwatch.wire.ring.requests import (
    Answer,
    Request,
    read_request,
    request_path,
    withdraw,
    write_answer,
)

if TYPE_CHECKING:
    from pathlib import Path

    from ampwatch.training.iteration.context import WayOut

INTERVAL_NS = 250_000_000
"""Least time between two checks for a request: each is a system call. Unit: ns."""


class Requests:
    """Finds requests and answers them.

    Args:
        out: Way out of the records; it knows the ring file, where there is one.
    """

    def __init__(self, out: WayOut) -> None:
        self._out = out
        self._pid = os.getpid()
        self._asked_ns = 0
        self._seen: tuple[int, int] | None = None
        self._token = ""

    def newest(self, now_ns: int) -> Request | None:
        """Return a request that is not answered yet, if there is one.

        A file that is no valid request is passed over: no command has written it.

        Cost: a ``stat`` four times a second.
        """
        if now_ns - self._asked_ns < INTERVAL_NS:
            return None
        self._asked_ns = now_ns
        ring = self._out.ring_path
        if ring is None or os.getpid() != self._pid:  # a forked child leaves it to its parent
            return None
        with Suppress(OSError, ValueError):
            status = os.lstat(request_path(ring))
            signature = (status.st_ino, status.st_mtime_ns)
            if signature == self._seen:
                return None
            self._seen = signature
            request = read_request(ring)
            if _may_be_replaced(request.path):
                return request
            self.refuse(request, f"expected an empty file of this user's at {request.path}")
        return None

    def is_withdrawn(self, request: Request) -> bool:
        """Whether the answer is not waited for any more."""
        ring = self._out.ring_path
        with Suppress(OSError, ValueError):
            return ring is None or read_request(ring).token != request.token
        return True

    def has_answered(self, request: Request) -> bool:
        """Whether a request was answered, if it was the newest."""
        return self._token == request.token

    def refuse(self, request: Request, why_not: str) -> None:
        """Answer with the reason why it cannot be had."""
        self.answer(Answer(request.token, why_not))

    def answer(self, answer: Answer) -> None:
        """Answer, and be open for the next request."""
        ring = self._out.ring_path
        if ring is None:
            return
        self._token = answer.token
        # The directory may be full or gone: the command that waits has a time-out.
        with Suppress(OSError):
            write_answer(ring, answer)

    def remove(self) -> None:
        """Answer a request that still waits that the run is over; else leave no file behind."""
        ring = self._out.ring_path
        if ring is None or os.getpid() != self._pid:
            return
        with Suppress(OSError, ValueError):
            request = read_request(ring)
            if request.token != self._token:
                self.refuse(request, "the training has ended")
            return  # the command that waits removes both files
        withdraw(ring)


def _may_be_replaced(path: Path) -> bool:
    # Not following links: the trace is written by this user over whatever lies at the path.
    with Suppress(OSError):
        status = path.lstat()
        return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_size
    return False
