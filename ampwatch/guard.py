"""The fail-open boundary: an exception of ampwatch never reaches a training step.

Whatever a sensor does inside a step it does behind its ``Guard``: called by a ``Channel``, which
hands one kind of event to all sensors that want it, or through ``Guard.run`` where something else
than an event begins the work. The first exception switches that sensor off for good, is logged
once with its traceback and counted; training does not notice.

Other broad ``except`` clauses of the training half stand where no sensor runs: in the code that
attaches itself to a program (`training/attach`), and around functions that a user has handed to
an action (`training/actions`). Decision 0031 lists them all.
"""

from __future__ import annotations

import contextlib
import logging
from threading import Lock, get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
            # An interrupt may come after any call; an account that stayed open would count for ever.
            try:
                self._ended_ns += perf_counter_ns() - self._began_ns
            finally:
                self._counted = 0
                self._running.release()


class Guard:
    """Runs the in-step work of one sensor and keeps its failures from training.

    Args:
        name: The sensor's name, for the log.
        account: Where its time is counted; its own by default.
        is_thread_safe: Whether the sensor may be at work in several threads at a time.
        failed: Called with the guard and the exception after the sensor has failed: to take off
            what it has placed for the moment, and to report it.

    Attributes:
        errors: Exceptions kept from training so far; at most one per sensor.
        missed: Calls so far that came while another thread was in one.
    """

    __slots__ = (
        "_account",
        "_failed",
        "_holders",
        "_is_thread_safe",
        "_lock",
        "_thread",
        "errors",
        "missed",
        "name",
    )

    def __init__(
        self,
        name: str,
        account: Account | None = None,
        *,
        is_thread_safe: bool = False,
        failed: Callable[[Guard, Exception], None] | None = None,
    ) -> None:
        self.name = name
        self._failed = failed
        self.errors = 0
        self._account = account or Account()
        self.missed = 0
        self._is_thread_safe = is_thread_safe
        # Of a thread-safe sensor each thread may be in one call at a time.
        self._holders: set[int] = set()
        self._lock = Lock()
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
        me = get_ident()
        if self._is_thread_safe:
            if me in self._holders:
                return None
        elif not self._lock.acquire(False):  # noqa: FBT003 - half the time that a keyword takes
            self.missed += self._thread != me
            return None
        self._thread = me
        try:
            if self._is_thread_safe:
                self._holders.add(me)
            outermost = self._account.enter(me)
            try:
                return work(*arguments)
            except Exception as error:  # noqa: BLE001 - the fail-open boundary
                self.switch_off(error)
                return None
            finally:
                self._account.leave(me, outermost)
        finally:
            if self._is_thread_safe:
                self._holders.discard(me)
            else:
                self._lock.release()

    def switch_off(self, error: Exception) -> None:
        """Count an exception that was kept from training, report it, and log it."""
        self.errors += 1
        if self._failed is not None:
            # What is broken may break here as well; the first error is the one that tells why.
            with contextlib.suppress(Exception):
                self._failed(self, error)
        # A log handler is user code and may raise as well.
        with contextlib.suppress(Exception):
            logger.warning(
                "ampwatch switched its sensor %r off after an error of its own; training is not"
                " affected, but what this sensor watches is not seen any more",
                self.name,
                exc_info=error,
            )


class Sleeper(Protocol):
    """A sensor as a channel sees it.

    Attributes:
        is_dormant: Nothing happens that concerns it: only events that wake it are handed to it.
    """

    is_dormant: bool


class Subscriber(NamedTuple):
    """One sensor that wants one kind of event.

    Attributes:
        sensor: The sensor.
        guard: Its boundary.
        handle: Its method of the event's name.
        wakes: Whether the event reaches it while it is dormant.
    """

    sensor: Sleeper
    guard: Guard
    handle: Callable[[Any], object]
    wakes: bool


class Channel:
    """Hands one kind of event to its subscribers, each behind its own guard.

    Args:
        account: Where the time is counted.

    Attributes:
        subscribers: Who is called, in order. Replaced as a whole, never changed in place: an
            event of another thread goes through the tuple that it has read.
    """

    __slots__ = ("_account", "subscribers")

    def __init__(self, account: Account) -> None:
        self._account = account
        self.subscribers: tuple[Subscriber, ...] = ()

    def emit(  # noqa: C901, PLR0912, PLR0915 - in line on purpose, see below
        self, event: object
    ) -> Sequence[tuple[Guard, Callable[[], object]]]:
        """Hand ``event`` to all subscribers that are neither off, dormant nor at work already.

        Returns:
            What subscribers want to have called at the end of what begins here, and the guards
            of these; only handlers of events that have an end return such a function.

        Cost: two clock reads for all of them together, 0.2 us a subscriber, a comparison for one
        that is dormant. Thread: the caller's.
        """
        # This runs a dozen times in each step: what Guard.run, Account.enter and Account.leave do
        # stands here in line, since calling them would cost more than what they do. Python raises
        # KeyboardInterrupt after a call, never between two assignments: ``me`` says that there is
        # a depth to take back, so nothing is called between storing the one and the other.
        account, me = self._account, 0
        depths, outermost = account._depths, False  # noqa: SLF001 - of this module
        ends: list[tuple[Guard, Callable[[], object]]] | None = None
        try:
            for sensor, guard, handle, wakes in self.subscribers:
                if guard.errors or (sensor.is_dormant and not wakes):
                    continue
                if not me:
                    thread = get_ident()
                    depths[thread] = depths.get(thread, 0) + 1
                    me = thread
                    if account._counted != me and account._running.acquire(False):  # noqa: FBT003, SLF001
                        outermost = True
                        account._counted = me  # noqa: SLF001
                        account._began_ns = perf_counter_ns()  # noqa: SLF001
                if guard._is_thread_safe:  # noqa: SLF001
                    if me in guard._holders:  # noqa: SLF001
                        continue
                elif guard._lock.acquire(False):  # noqa: FBT003, SLF001
                    guard._thread = me  # noqa: SLF001
                else:
                    guard.missed += guard._thread != me  # noqa: SLF001
                    continue
                try:
                    if guard._is_thread_safe:  # noqa: SLF001
                        guard._holders.add(me)  # noqa: SLF001
                    end = handle(event)
                    if end is not None:
                        ends = ends or []
                        ends.append((guard, end))  # type: ignore[arg-type] # such a handler returns a function
                except Exception as error:  # noqa: BLE001 - the fail-open boundary
                    guard.switch_off(error)
                finally:
                    if guard._is_thread_safe:  # noqa: SLF001
                        guard._holders.discard(me)  # noqa: SLF001
                    else:
                        guard._lock.release()  # noqa: SLF001
        finally:
            if me:
                if depths[me] > 1:
                    depths[me] -= 1
                else:
                    del depths[me]
                if outermost:
                    try:
                        account._ended_ns += perf_counter_ns() - account._began_ns  # noqa: SLF001
                    finally:
                        account._counted = 0  # noqa: SLF001
                        account._running.release()  # noqa: SLF001
        return ends or ()
