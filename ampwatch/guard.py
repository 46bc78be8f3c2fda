"""The fail-open boundary: an exception of ampwatch never reaches a training step.

Whatever a sensor does inside a step it does behind its ``Guard``: called by a ``Channel`` (`training/hooks/channel.py`),
which hands one kind of event to all sensors that want it, or through ``Guard.run`` where something else
than an event begins the work. The first exception switches that sensor off for good, is logged
once with its traceback and counted; training does not notice. One that comes because the program has
filled the stack, or out of a log handler, is not the sensor's.

Other broad ``except`` clauses of the training half stand where no sensor runs: in the code that
attaches itself to a program (`training/attach`), and around functions that a user has handed to
an action (`training/actions`). Decision 0003 says where else they stand.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import signal
from itertools import pairwise
from threading import get_ident, main_thread
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    Handler = Callable[[int, FrameType | None], object]
    _Adapter = logging.LoggerAdapter[Any]
else:
    _Adapter = logging.LoggerAdapter  # which Python 3.10 cannot subscript

T = TypeVar("T")
P = ParamSpec("P")

SIGNALS = tuple(sorted(number for number in signal.valid_signals() if number < signal.SIGRTMIN))
"""Signals whose handlers wait. Asking for all of those of real time would cost as much again."""

PASSED = "ampwatch.training."
"""How the names of the modules begin whose frames stand between a program and PyTorch."""


def is_of_a_signal(error: BaseException) -> bool:
    """Whether the program's own handler of a signal has raised an exception.

    A time limit set with ``signal.alarm`` raises wherever the program is just then, in a sensor as
    well, and what it raises is an ``Exception`` as a rule: it is the program's anyway, as
    ``KeyboardInterrupt`` is. The traceback shows it: Python calls a handler from the frame that it
    interrupts, with the number of the signal and that very frame. One that had to wait is called
    by ``_Waiting.hand_on``.
    """
    at = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code is _Waiting.hand_on.__code__:
            return True
        if (inner := at.tb_next) is None:
            return False
        code, values = inner.tb_frame.f_code, inner.tb_frame.f_locals
        # Positional ones first, then keyword-only ones, then ``*args``.
        names = code.co_varnames
        arguments = [values.get(name) for name in names[: code.co_argcount]]
        if code.co_flags & inspect.CO_VARARGS:
            rest = values.get(names[code.co_argcount + code.co_kwonlyargcount])
            arguments += rest if isinstance(rest, tuple) else ()
        for number, frame in pairwise(arguments):
            if frame is at.tb_frame and isinstance(number, int):
                return True
        at = inner
    return False


def leave_out_own_frames(error: BaseException) -> None:
    """Take the frames of ampwatch that an exception only passed through out of its traceback.

    For the outermost of these frames, before a bare ``raise``. What is within the last frame of
    somebody else stays: there ampwatch itself has raised. So does what a handler of a signal has
    raised, which is known by the frame that it interrupted. Before Python 3.11 the frame that calls
    this stays, for ``raise`` brings it back.

    Cost: some us, where something was raised.
    """
    links, at = [], error.__traceback__
    while at is not None:
        links.append(at)
        at = at.tb_next
    is_own = [str(x.tb_frame.f_globals.get("__name__")).startswith(PASSED) for x in links]
    if True not in is_own or False not in is_own or is_of_a_signal(error):
        return
    end = len(links) - is_own[::-1].index(False)
    kept = [x for x, own in zip(links[:end], is_own, strict=False) if not own] + links[end:]
    for link, inner in pairwise(kept if kept[0] is links[0] else [links[0], *kept]):
        link.tb_next = inner
    error.__traceback__ = kept[0]


ROOM = 100
"""Calls within one another that a sensor may need."""


def has_room(calls: int = ROOM) -> bool:
    """Whether the stack has room for so many calls within one another."""
    try:
        return calls == 0 or has_room(calls - 1)
    except RecursionError:
        return False


class Suppress(contextlib.suppress):
    """As ``contextlib.suppress``; what the program's own handler of a signal has raised goes on.

    A time limit raises ``TimeoutError``, which is an ``OSError``, and comes while a file is written
    as well as anywhere else.
    """

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Return whether the error ends here."""
        is_expected = bool(super().__exit__(kind, error, traceback))
        return is_expected and error is not None and not is_of_a_signal(error)


class Log(_Adapter):
    """A logger of the program's, whose handlers and filters raise nothing into who writes to it.

    Args:
        target: The logger, or its name.
    """

    def __init__(self, target: str | logging.Logger | _Adapter = "ampwatch") -> None:
        super().__init__(logging.getLogger(target) if isinstance(target, str) else target, {})

    def process(self, msg: object, kwargs: Any) -> tuple[object, Any]:
        """Leave a line as it is."""
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Write a line, as of the line of code that says so."""
        with Suppress(Exception):
            super().log(level, msg, *args, **({"stacklevel": 2} | kwargs))


logger = Log(__name__)


class _Waiting:
    """A handler of signals that only takes note of them, in place of the program's own.

    Args:
        handlers: The program's own, by the number of the signal.
    """

    def __init__(self, handlers: dict[int, Handler]) -> None:
        self._handlers = handlers
        self._came: dict[int, FrameType | None] = {}

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._came.setdefault(number, frame)

    def begin(self) -> None:
        """Stand in place of the program's own."""
        for number in self._handlers:
            signal.signal(number, self)

    def end(self) -> None:
        """Put the program's own back. Idempotent: one that is back may raise in the middle."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def hand_on(self) -> None:
        """Call the program's own for each signal that came, also after one that raises."""
        while self._came:
            number = next(iter(self._came))
            frame = self._came.pop(number)
            try:
                self._handlers[number](number, frame)
            except BaseException:
                self.hand_on()
                raise


def _handlers() -> dict[int, Handler]:
    """Return the handlers that are written in Python and are the program's, by their signals."""
    found = {number: signal.getsignal(number) for number in SIGNALS}
    return {
        number: handler
        for number, handler in found.items()
        if callable(handler) and not isinstance(handler, _Waiting)
    }


def unbroken(work: Callable[P, T]) -> Callable[P, T]:
    """Have the program's handlers of signals wait until a function has returned or raised.

    For what is placed in PyTorch or taken off: half of it would stay, with nobody who knows of it,
    where an interrupt from the keyboard or a time limit raises in the middle. The program's own
    handlers are called then, once for each signal however many came. The function must be short,
    run nothing of the user's, and keep what it has done where others find it: its caller may never
    see what it returns. An interrupt before it begins finds nothing done.

    Cost: 20 us in the main thread, in which alone Python handles signals; not for each step.
    """

    @functools.wraps(work)
    def waited(*args: P.args, **kwargs: P.kwargs) -> T:
        handlers = _handlers() if get_ident() == main_thread().ident else {}
        if not handlers:
            return work(*args, **kwargs)
        waiting = _Waiting(handlers)
        try:
            waiting.begin()
            result = work(*args, **kwargs)
            waiting.end()
        except BaseException:
            waiting.end()
            waiting.hand_on()
            raise
        waiting.hand_on()
        return result

    return waited


class OneAtATime:
    """Lets one call in at a time, and has no other wait: neither of another thread nor of its own.

    Not a lock: an interrupt may come between the call that takes one and the place that knows of
    it, and then it is never given back.
    """

    __slots__ = ("_by",)

    def __init__(self) -> None:
        self._by: dict[str, int] = {}

    def run(self, work: Callable[..., object], *arguments: Any) -> bool:
        """Call ``work(*arguments)`` unless a call is in; return whether it was called."""
        if self._by:
            return False
        me = get_ident()
        try:
            # Atomic, with the GIL and without.
            if self._by.setdefault("by", me) != me:
                return False
            work(*arguments)
            self._by.clear()
        except BaseException:
            if self._by.get("by") == me:
                self._by.clear()
            raise
        return True


class Modes(NamedTuple):
    """What the program has on that sees each op of a thread: it is put aside while ampwatch is at work.

    Attributes:
        num: Returns how many modes are on in the calling thread, whosever they are.
        others: Returns those of the program.
        take_off: Takes these off.
        put_on: Puts them on again.
    """

    num: Callable[[], int]
    others: Callable[[], list[Any]]
    take_off: Callable[[list[Any]], None]
    put_on: Callable[[list[Any]], None]


NO_MODES = Modes(int, list, lambda _: None, lambda _: None)


class Account:
    """Host time spent by the guards that share it.

    Whether ampwatch is at work in a thread all accounts know of all: what runs for one monitor is
    nothing that another one is to see.

    A call within a guarded call is part of it. So is one of another thread at the same time
    (autograd runs hooks in a thread per device): the outermost call counts, the others do not.

    Nothing here is a lock. An interrupt may come after any call, also after that which takes a
    lock, and a lock that nobody knows to be taken stays so. What a guarded call marks it marks
    within a ``try``, and takes back twice if the first time was interrupted: taking back again
    does no harm. Without the GIL, the time of two threads may be counted wrongly, and nothing else
    rests on it.

    Args:
        modes: What is put aside during the outermost call of a thread: it is not to see, nor to draw
            random numbers for, what the training alone would not do.

    Attributes:
        aside: The modes that are put aside, by thread.
        modes: As given.
    """

    _depths: ClassVar[dict[int, int]] = {}
    aside: ClassVar[dict[int, list[Any]]] = {}

    __slots__ = ("_began_ns", "_counted", "_depth", "_ended_ns", "modes")

    def __init__(self, modes: Modes = NO_MODES) -> None:
        self.modes = modes
        # The thread whose outermost call is counted, 0 without one, and its depth before that.
        self._counted = self._depth = 0
        self._began_ns = self._ended_ns = 0

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread is in a guarded call: what runs now is ampwatch's own."""
        return get_ident() in self._depths

    @property
    def spent_ns(self) -> int:
        """Time spent so far, the call that is running included. Unit: ns."""
        running = perf_counter_ns() - self._began_ns if self._counted else 0
        return self._ended_ns + running

    def restart(self) -> None:
        """Count from here: what set-up has taken is not what each step takes."""
        self._ended_ns = 0

    def add(self, spent_ns: int) -> None:
        """Count what was spent outside of guarded calls. Unit: ns."""
        self._ended_ns += spent_ns

    def begin(self, me: int, depth: int) -> None:
        """Begin a call, and count it unless an outer one or one of another thread is counted."""
        began = perf_counter_ns()
        self._depths[me] = depth + 1
        if not self._counted or (self._counted == me and not depth):
            self._began_ns = began
            self._depth = depth
            self._counted = me
        if not depth and self.modes.num():
            self.step_aside(me)

    def step_aside(self, me: int) -> None:
        """Put the modes of the program aside, if there are any."""
        others = self.modes.others()
        if others:
            # What is taken off here must be put on again below.
            if not has_room():
                raise RecursionError
            self._put_aside(me, others)

    @unbroken
    def _put_aside(self, me: int, others: list[Any]) -> None:
        self.aside[me] = others
        self.modes.take_off(others)

    @unbroken
    def come_back(self, me: int) -> None:
        """Put the modes of the program on again. Idempotent."""
        if me in self.aside:
            self.modes.put_on(self.aside[me])
            del self.aside[me]

    def end(self, me: int, depth: int) -> None:
        """End what ``begin`` has begun with the same arguments, if it has. Idempotent."""
        if not depth and me in self.aside:
            self.come_back(me)
        if depth:
            self._depths[me] = depth
        else:
            self._depths.pop(me, None)
        if self._counted == me and self._depth == depth:
            self._ended_ns += perf_counter_ns() - self._began_ns
            self._counted = 0


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
        missed: Calls so far that came while another thread was in one, or where the program had filled
            the stack.
    """

    __slots__ = (
        "_account",
        "_failed",
        "_holders",
        "_is_thread_safe",
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
        # Threads at work in the sensor: of a thread-safe one each may be in one call at a time,
        # under a key of its own; of others only one.
        self._holders: dict[int, int] = {}

    @property
    def off(self) -> bool:
        """Whether the sensor has failed and been switched off."""
        return self.errors > 0

    def run(self, work: Callable[..., T], *arguments: Any) -> T | None:
        """Call ``work(*arguments)`` unless the sensor is off or already at work.

        ``KeyboardInterrupt`` and other non-``Exception`` throwables pass, and
        so does what a handler of a signal raises: they are addressed to the
        program, not to the sensor. A call that arrives
        while another of the same sensor is running comes from what the sensor
        itself does and is ignored.

        Returns:
            What ``work`` returns; ``None`` if it was not called or has failed.

        Cost: two clock reads, about 0.3 us. Thread: the caller's.
        """
        if self.errors:
            return None
        account, me = self._account, get_ident()
        depth = account._depths.get(me, 0)  # noqa: SLF001 - of this module
        holders, key = self._holders, me if self._is_thread_safe else 0
        # At depth 0 nothing of ampwatch runs in this thread: whatever holds it is of an interrupt.
        if key in holders and (depth or holders.get(key) != me):
            self.missed += holders.get(key, 0) != me
            return None
        try:
            try:
                # First: where there is no room for the calls in it, nothing is marked.
                account.begin(me, depth)
                if holders.setdefault(key, me) != me:
                    self.missed += 1
                    return None
                return work(*arguments)
            except Exception as error:  # noqa: BLE001 - the fail-open boundary
                try:
                    if is_of_a_signal(error):
                        raise
                    self.switch_off(error)
                except RecursionError:
                    self.missed += 1
                return None
            finally:
                self.let_go(me)
                account.end(me, depth)
        except BaseException:
            # An interrupt may have come in the middle of the end.
            self.let_go(me)
            account.end(me, depth)
            raise

    def let_go(self, me: int) -> None:
        """Have thread ``me`` be at work in the sensor no more. Idempotent."""
        key = me if self._is_thread_safe else 0
        if self._holders.get(key) == me:
            del self._holders[key]

    def switch_off(self, error: Exception) -> None:
        """Count an exception that was kept from training, report it, and log it.

        Where the program has filled the stack it says nothing about the sensor, whatever its class:
        the call is one that was missed.
        """
        if not has_room():
            self.missed += 1
            return
        self.errors += 1
        if self._failed is not None:
            # What is broken may break here as well; the first error is the one that tells why.
            with Suppress(Exception):
                self._failed(self, error)
        logger.warning(
            "ampwatch sensor %r failed and is switched off; training is not affected, but this sensor"
            " makes no more findings",
            self.name,
            exc_info=error,
        )
