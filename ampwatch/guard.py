"""The one fail-open boundary: an exception of ampwatch never reaches a training step.

Whatever a sensor does inside a step it does through ``Guard.run``. The first
exception switches that sensor off for good, is logged once with its traceback
and counted; training does not notice. This is the only broad ``except`` of the
training half.
"""

from __future__ import annotations

import contextlib
import logging
from threading import Lock, get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Account:
    """Host time spent by the guards that share it.

    Whether ampwatch is at work in a thread all accounts know of all: what runs for one monitor is
    nothing that another one is to see.

    A call within a guarded call is part of it. So is one of another thread at the same time
    (autograd runs hooks in a thread per device): the outermost call counts, the others do not.
    """

    _depths: ClassVar[dict[int, int]] = {}

    __slots__ = ("_began_ns", "_counted", "_ended_ns", "_running")

    def __init__(self) -> None:
        self._running = Lock()
        self._counted = 0
        self._began_ns = self._ended_ns = 0

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread is in a guarded call: what runs now is ampwatch's own."""
        return get_ident() in self._depths

    @property
    def spent_ns(self) -> int:
        """Time spent so far, the call that is running included. Unit: ns."""
        running = perf_counter_ns() - self._began_ns if self._running.locked() else 0
        return self._ended_ns + running

    def enter(self, me: int) -> bool:
        """A guarded call of thread ``me`` begins; return whether it is the outermost of all."""
        self._depths[me] = self._depths.get(me, 0) + 1
        if self._counted == me or not self._running.acquire(False):  # noqa: FBT003 - half the time
            return False
        self._counted = me
        self._began_ns = perf_counter_ns()
        return True

    def leave(self, me: int, outermost: bool) -> None:  # noqa: FBT001 - likewise
        """A guarded call of thread ``me`` ends."""
        depth = self._depths[me] - 1
        if depth:
            self._depths[me] = depth
        else:
            del self._depths[me]
        if outermost:
            self._ended_ns += perf_counter_ns() - self._began_ns
            self._counted = 0
            self._running.release()


class _OncePerThread:
    """A lock that several threads may hold at a time, each of them once."""

    __slots__ = ("_holders",)

    def __init__(self) -> None:
        self._holders: set[int] = set()

    def acquire(self, blocking: bool) -> bool:  # noqa: ARG002, FBT001 - as of a lock
        """Return whether the calling thread did not hold it; it does now. Never blocks."""
        me = get_ident()
        if me in self._holders:
            return False
        self._holders.add(me)
        return True

    def release(self) -> None:
        """The calling thread does not hold it any more."""
        self._holders.discard(get_ident())


class Guard:
    """Runs the in-step work of one sensor and keeps its failures from training.

    Args:
        name: The sensor's name, for the log.
        account: Where its time is counted; its own by default.
        is_thread_safe: Whether the sensor may be at work in several threads at a time.

    Attributes:
        errors: Exceptions kept from training so far; at most one per sensor.
        missed: Calls so far that came while another thread was in one.
    """

    __slots__ = ("_account", "_is_thread_safe", "_lock", "_thread", "errors", "missed", "name")

    def __init__(
        self, name: str, account: Account | None = None, *, is_thread_safe: bool = False
    ) -> None:
        self.name = name
        self.errors = 0
        self._account = account or Account()
        self.missed = 0
        self._is_thread_safe = is_thread_safe
        self._lock = _OncePerThread() if is_thread_safe else Lock()
        self._thread = 0

    @property
    def spent_ns(self) -> int:
        """Host time spent so far by all guards of the account. Unit: ns."""
        return self._account.spent_ns

    @property
    def off(self) -> bool:
        """Whether the sensor has failed and been switched off."""
        return self.errors > 0

    def run(self, work: Callable[..., T], *arguments: Any) -> T | None:
        """Call ``work(*arguments)`` unless the sensor is off or already at work.

        ``KeyboardInterrupt`` and other non-``Exception`` throwables pass: they
        are addressed to the program, not to the sensor. A call that arrives
        while another of the same sensor is running comes from what the sensor
        itself does and is ignored.

        Returns:
            What ``work`` returns; ``None`` if it was not called or has failed.

        Cost: two clock reads, about 0.3 us. Thread: the caller's.
        """
        if self.errors:
            return None
        if not self._lock.acquire(False):  # noqa: FBT003 - half the time that a keyword takes
            self.missed += not self._is_thread_safe and self._thread != get_ident()
            return None
        me = self._thread = get_ident()
        outermost = self._account.enter(me)
        try:
            return work(*arguments)
        except Exception as error:  # noqa: BLE001 - the fail-open boundary
            self.errors += 1
            self._tell(error)
            return None
        finally:
            self._lock.release()
            self._account.leave(me, outermost)

    def _tell(self, error: Exception) -> None:
        # A log handler is user code and may raise as well.
        with contextlib.suppress(Exception):
            logger.warning(
                "ampwatch switched its sensor %r off after an error of its own; training is not"
                " affected, but what this sensor watches is not seen any more",
                self.name,
                exc_info=error,
            )
