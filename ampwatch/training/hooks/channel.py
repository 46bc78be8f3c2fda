"""Channels: each hands one kind of event to the sensors that want it, each behind its own guard.

An event comes a dozen times in a quiet step, in the middle of which the caches have forgotten our code.
So the channel is a part of the extension module (`native/channel.c`), and stands here a second time for
where that is not built.
"""

from __future__ import annotations

from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from ampwatch.guard import Account, Guard, is_of_a_signal
from ampwatch.training.native import timed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.training.hooks.sensor import Sensor


class Subscriber(NamedTuple):
    """One sensor that wants one kind of event.

    Attributes:
        sensor: The sensor.
        guard: Its boundary.
        handle: Its method of the event's name.
        wakes: Whether the event reaches it while it is dormant.
    """

    sensor: Sensor
    guard: Guard
    handle: Callable[[Any], object]
    wakes: bool


class PythonChannel:
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
        # This runs a dozen times in each step: what Guard.run and Account do stands here in line,
        # since calling them would cost more than what they do. ``me`` says that there is a depth to
        # take back, and so comes before it.
        account, me, depth = self._account, 0, 0
        subscribers = self.subscribers
        depths = account._depths  # noqa: SLF001 - of this module
        ends: list[tuple[Guard, Callable[[], object]]] | None = None
        left = iter(subscribers)
        # A turn for each that fails: a `try` within another is not in it while it begins.
        while True:
            try:
                for sensor, guard, handle, wakes in left:
                    if guard.errors or (sensor.is_dormant and not wakes):
                        continue
                    if not me:
                        thread = get_ident()
                        depth = depths.get(thread, 0)
                        began = perf_counter_ns()
                        me = thread
                        depths[thread] = depth + 1
                        if not account._counted or (account._counted == me and not depth):  # noqa: SLF001
                            account._began_ns = began  # noqa: SLF001
                            account._depth = depth  # noqa: SLF001
                            account._counted = me  # noqa: SLF001
                        if not depth and account.modes.num():
                            account.step_aside(me)
                    holders, key = guard._holders, me if guard._is_thread_safe else 0  # noqa: SLF001
                    if key in holders and (depth or holders.get(key) != me):
                        guard.missed += holders.get(key, 0) != me
                        continue
                    if holders.setdefault(key, me) != me:
                        guard.missed += 1
                        continue
                    end = handle(event)
                    if end is not None:
                        ends = ends or []
                        ends.append((guard, end))  # type: ignore[arg-type] # such a handler returns a function
                    holders.pop(key, None)
                if me:
                    if depth:
                        depths[me] = depth
                    else:
                        if me in account.aside:
                            account.come_back(me)
                        depths.pop(me, None)
                    if account._counted == me and account._depth == depth:  # noqa: SLF001
                        account._ended_ns += perf_counter_ns() - account._began_ns  # noqa: SLF001
                        account._counted = 0  # noqa: SLF001
                break
            except Exception as error:  # noqa: BLE001 - the fail-open boundary
                try:
                    # In line: where the stack is full each call of a function of Python's raises.
                    key = me if guard._is_thread_safe else 0  # noqa: SLF001
                    if guard._holders.get(key) == me:  # noqa: SLF001
                        guard._holders.pop(key, None)  # noqa: SLF001
                    if is_of_a_signal(error):
                        raise
                    guard.switch_off(error)
                except RecursionError:
                    guard.missed += 1
                except BaseException:
                    self._abandon(subscribers, me, depth)
                    raise
            except BaseException:
                self._abandon(subscribers, me, depth)
                raise
        return ends or ()

    def _abandon(self, subscribers: tuple[Subscriber, ...], me: int, depth: int) -> None:
        """Take back what was marked for an event in which an interrupt has come."""
        if me:
            for subscriber in subscribers:
                subscriber.guard.let_go(me)
            self._account.end(me, depth)


def _keep(guard: Guard, error: Exception) -> bool:
    """Whether an error ends here, which a signal's does not: it has switched its sensor off."""
    if is_of_a_signal(error):
        return False
    guard.switch_off(error)
    return True


if TYPE_CHECKING or timed is None:
    Channel = PythonChannel
else:
    timed.prepare_channels(Account._depths, _keep)  # noqa: SLF001 - of all accounts
    Channel = timed.Channel
