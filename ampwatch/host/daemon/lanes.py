"""Threads that make answers, one a kind, so that no kind of answer waits for another one, and who is first.

A connection costs no thread: only the answer to a whole request is made in one. What many ask
for at the same time is made once for all of them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator


class LaneFullError(Exception):
    """Too many jobs wait already."""


class Lane:
    """Does one job after another in a thread of its own.

    Args:
        name: Of the thread.
        max_waiting: Jobs that may wait; the next one is refused.
    """

    def __init__(self, name: str, max_waiting: int) -> None:
        self._name = name
        self._max_waiting = max_waiting
        self._jobs: deque[tuple[Hashable, Callable[[], Any], Future[Any]] | None] = deque()
        self._waiting: dict[Hashable, Future[Any]] = {}
        self._changed = threading.Condition()

    def start(self) -> None:
        """Start the thread: once, and after the process has forked."""
        # A daemon thread: a job that hangs must not keep a process alive that has to end.
        threading.Thread(target=self._run, name=f"ampwatch-{self._name}", daemon=True).start()

    def ask(self, job: Callable[[], Any], key: Hashable = None) -> Future[Any]:
        """Return the future result of ``job``.

        Args:
            job: What to do.
            key: Jobs of one key have the same result. Those that wait are done once; one that has
                begun is not joined, as it may miss what has happened since.

        Raises:
            LaneFullError: If too many wait already.
        """
        with self._changed:
            if key is not None and (shared := self._waiting.get(key)) is not None:
                return shared
            if len(self._jobs) >= self._max_waiting:
                raise LaneFullError
            future: Future[Any] = Future()
            self._jobs.append((key, job, future))
            if key is not None:
                self._waiting[key] = future
            self._changed.notify()
            return future

    def close(self) -> None:
        """End the thread after the jobs that wait."""
        with self._changed:
            self._jobs.append(None)
            self._changed.notify()

    def _run(self) -> None:
        while (taken := self._next()) is not None:
            job, future = taken
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is waited for
                future.set_exception(error)
            else:
                future.set_result(result)

    def _next(self) -> tuple[Callable[[], Any], Future[Any]] | None:
        with self._changed:
            while not self._jobs:
                self._changed.wait()
            entry = self._jobs.popleft()
            if entry is None:
                return None
            key, job, future = entry
            self._waiting.pop(key, None)
            # From here on it cannot be cancelled: others may have joined it.
            future.set_running_or_notify_cancel()
            return job, future


class Precedence:
    """Lets long work step aside while something short and urgent is done.

    Two threads of Python that both have work take turns, and the short one takes twice as long.
    """

    def __init__(self) -> None:
        self._urgent = 0
        self._changed = threading.Condition()

    @contextmanager
    def first(self) -> Iterator[None]:
        """Go first."""
        with self._changed:
            self._urgent += 1
        try:
            yield
        finally:
            with self._changed:
                self._urgent -= 1
                self._changed.notify_all()

    def step_aside(self, seconds: float) -> float:
        """Wait until nothing urgent is under way; hold no lock meanwhile.

        Args:
            seconds: The longest time to wait.

        Returns:
            What is left of ``seconds``.
        """
        # Without the lock: mostly there is nothing, and this is asked between small pieces.
        if not self._urgent or seconds <= 0.0:
            return seconds
        begin = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: not self._urgent, seconds)
        return seconds - (time.monotonic() - begin)


class Turns:
    """Lets one request go on in each pass of the loop, that of the client first who was answered longest ago.

    A thousand clients that always have a next request would otherwise all have their turn in each
    pass, and whoever comes for one scrape needs several passes.
    """

    def __init__(self) -> None:
        self._waiting = asyncio.PriorityQueue[tuple[float, int, asyncio.Future[None]]]()
        self._numbers = count()

    async def wait(self, answered: float) -> None:
        """Wait for a turn.

        Args:
            answered: Time of the loop at which this client was answered last, 0 if it never was. Unit: s.
        """
        turn = asyncio.get_running_loop().create_future()
        # By number where two have waited equally long: futures cannot be compared.
        self._waiting.put_nowait((answered, next(self._numbers), turn))
        await turn

    async def run(self) -> None:
        """Give turns until it is cancelled."""
        while True:
            _, _, turn = await self._waiting.get()
            if not turn.done():  # a client that has left does not take anybody's
                turn.set_result(None)
                await asyncio.sleep(0)
