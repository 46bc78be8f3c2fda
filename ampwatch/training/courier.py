"""A thread of its own that hands things over, one after the other, and that training never waits for."""

from __future__ import annotations

import contextlib
import os
from _thread import start_new_thread
from queue import Full, Queue
from threading import Event, Thread, current_thread
from typing import TYPE_CHECKING, Generic, TypeVar

from ampwatch.guard import Suppress

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

PATIENCE_S = 1.0
"""How long a thread is waited for that is to begin. Unit: s."""


def _begin(thread: Thread) -> bool:
    """Do as ``thread.start()``, which waits for ever for a thread that has no memory to begin.

    Returns:
        Whether that has come to an end: the thread runs, or none was to be had.
    """
    done = Event()

    def start() -> None:
        with contextlib.suppress(RuntimeError, MemoryError):
            thread.start()
        done.set()

    # No threads, no memory, or the interpreter has begun to end.
    with Suppress(RuntimeError, MemoryError):
        start_new_thread(start, ())
        return done.wait(PATIENCE_S)
    return True


class Courier(Generic[T]):
    """Hands things over from a daemon thread, through a queue that is bounded.

    Args:
        name: Name of the thread.
        hand_over: Called with each thing, on that thread. It must not raise.
        queue_size: Things that may wait; more are dropped.

    Attributes:
        dropped: Things that were not taken: the queue was full, or no thread could be started.
        ending: Set once the end has come: nobody waits for a pause any more.
    """

    def __init__(self, name: str, hand_over: Callable[[T], object], queue_size: int) -> None:
        self.dropped = 0
        self.ending = Event()
        self._name = name
        self._hand_over = hand_over
        # In a tuple each, so that nothing that is handed over looks like the end.
        self._queue: Queue[tuple[T] | None] = Queue(queue_size)
        self._thread: Thread | None = None
        self._pid = 0

    def open(self) -> None:
        """Begin anew after an end, unless it is at work."""
        if not self._is_working:
            self._queue = Queue(self._queue.maxsize)
            self.ending.clear()

    def start(self) -> bool:
        """Start the thread unless it runs; return whether it does. In a forked child it never does."""
        if self._is_working:
            return self._pid == os.getpid()
        if self._thread is not None and self._thread.ident is None:
            return False  # waited for once: it has not begun, and hardly will
        # A daemon: a thread that hangs must not keep the program from ending.
        thread = Thread(target=self._work, name=self._name, daemon=True)
        has_ended = _begin(thread)
        if thread.ident is not None or not has_ended:
            self._pid, self._thread = os.getpid(), thread
        return thread.ident is not None

    def put(self, thing: T, *, spare: int = 0, wait_s: float = 0.0) -> bool:
        """Take a thing, unless the queue is full; return whether it was taken.

        Args:
            thing: The thing.
            spare: Places of the queue that it leaves free.
            wait_s: How long to wait for a place. Unit: s.

        Cost: some us; the first time that of starting a thread.
        """
        # Started first: in a fork the queue's own lock may be one that nobody gives back.
        if self.start() and self._queue.qsize() + spare < self._queue.maxsize + (wait_s > 0):
            with contextlib.suppress(Full):
                self._queue.put((thing,), block=wait_s > 0, timeout=wait_s or None)
                return True
        self.dropped += 1
        return False

    def close(self, seconds: float) -> int | None:
        """Hand over what is left, and end the thread.

        Args:
            seconds: How long to wait for that.

        Returns:
            ``None`` if all was handed over. Else how many things were given up, besides the one
            that it is busy with.
        """
        thread = self._thread
        if thread is None or self._pid != os.getpid():  # a thread does not live on in a fork
            self._thread = None
            return None
        self.ending.set()
        self._wake()
        # What is handed over may have called for the end.
        if thread is not current_thread() and thread.is_alive():
            thread.join(seconds)
        given_up = None
        if thread.is_alive() and thread is not current_thread():
            given_up = self._queue.qsize()
            while not self._queue.empty():
                self._queue.get_nowait()
            self._wake()  # it ends with what it is busy with
        # Last: after an interrupt it is closed once more.
        self._thread = None
        return given_up

    @property
    def _is_working(self) -> bool:
        """Whether its thread takes things. In a forked child that is the parent's, and left alone."""
        thread = self._thread
        return thread is not None and (self._pid != os.getpid() or thread.is_alive())

    def _wake(self) -> None:
        # A queue that is full has something to wake up for.
        with contextlib.suppress(Full):
            self._queue.put_nowait(None)

    def _work(self) -> None:
        queue = self._queue  # one that is opened again has another
        while (taken := queue.get()) is not None:
            self._hand_over(*taken)
            if self.ending.is_set() and queue.empty():
                return
