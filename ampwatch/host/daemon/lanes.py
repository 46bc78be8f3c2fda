"""Threads that make answers, one a kind, so that no kind of answer waits for another one.

A connection costs no thread: only the answer to a whole request is made in one. What many ask
for at the same time is made once for all of them.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    _Job = tuple[Hashable, Callable[[], Any], Future[Any]]


class Lane:
    """Does one job after another in a thread of its own. It is asked from one thread.

    Args:
        name: Of the thread.
        max_waiting: Jobs that may wait; the next one is refused.
    """

    def __init__(self, name: str, max_waiting: int) -> None:
        self._name = name
        self._max_waiting = max_waiting
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._waiting: dict[Hashable, Future[Any]] = {}

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
            queue.Full: If too many wait already.
        """
        if key is not None and (shared := self._waiting.get(key)) is not None:
            return shared
        if self._jobs.qsize() >= self._max_waiting:
            raise queue.Full
        future: Future[Any] = Future()
        if key is not None:
            self._waiting[key] = future
        self._jobs.put((key, job, future))
        return future

    def close(self) -> None:
        """End the thread after the jobs that wait."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (taken := self._jobs.get()) is not None:
            key, job, future = taken
            self._waiting.pop(key, None)
            # From here on it cannot be cancelled: others may have joined it.
            future.set_running_or_notify_cancel()
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is waited for
                future.set_exception(error)
            else:
                future.set_result(result)
