"""The fail-open boundary."""

from __future__ import annotations

import dis
import itertools
import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import perf_counter_ns
from types import CodeType, FrameType
from typing import Any

import pytest

from ampwatch import guard as guards
from ampwatch.guard import Account, Guard, Log, Modes
from ampwatch.training.hooks.channel import Channel, PythonChannel, Subscriber

Reach = Callable[["Part", Account], Callable[[Any], object]]


@pytest.fixture(autouse=True, params=dict.fromkeys([Channel, PythonChannel]))
def made_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have channels be of the extension module, where it is built, or of Python."""
    monkeypatch.setattr(sys.modules[__name__], "Channel", request.param)


def _fail(*_: Any) -> None:
    msg = "broken"
    raise ValueError(msg)


def test_time_is_counted_also_when_the_work_fails() -> None:
    """The cost of ampwatch includes the cost of its failures."""
    account = Account()
    guard = Guard("s", account)
    guard.run(_fail)

    assert account.spent_ns > 0


def test_a_log_handler_that_raises_is_kept_from_training_too() -> None:
    """The user's logging configuration cannot break a step either."""

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            msg = "disk full"
            raise OSError(msg)

    handler = Broken()
    logger = logging.getLogger("ampwatch.guard")
    logger.addHandler(handler)
    guard = Guard("s")
    try:
        guard.run(guards.logger.warning, "a line of a sensor")
        assert not guard.off
        guard.run(_fail)
    finally:
        logger.removeHandler(handler)
    assert guard.off


def test_a_line_in_the_log_is_of_the_code_that_wrote_it(caplog: pytest.LogCaptureFixture) -> None:
    """A format of the user's with ``%(filename)s`` shows where it comes from; Python 3.10 cannot skip a frame."""
    Log("ampwatch").warning("%d", 1, extra={"finding": 2})
    (record,) = caplog.records

    assert (record.name, record.getMessage(), vars(record)["finding"]) == ("ampwatch", "1", 2)
    assert sys.version_info < (3, 11) or record.pathname == __file__


def test_a_guard_returns_what_the_work_returns_and_none_once_it_is_off() -> None:
    """Callers need no place of their own for a result."""
    guard = Guard("s")

    assert guard.run(lambda a, b: a + b, 2, 3) == 5
    assert guard.run(_fail) is None
    assert guard.run(lambda: 5) is None


def test_what_runs_within_a_guarded_call_is_ours_in_each_thread_on_its_own() -> None:
    """Two threads at once, and one that is in none; for all monitors of the process."""
    account = Account()
    seen = {}
    both = threading.Barrier(2)

    def work(name: str) -> None:
        both.wait(60)
        seen[name] = account.is_mine
        both.wait(60)

    threads = [
        threading.Thread(target=Guard(name, account).run, args=(work, name)) for name in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    Guard("c", account).run(lambda: seen.update(nested=account.is_mine))
    Guard("d").run(lambda: seen.update(of_another_monitor=account.is_mine))

    assert seen == {"a": True, "b": True, "nested": True, "of_another_monitor": True}
    assert not account.is_mine


class Part:
    """A sensor of one event, on a channel of its own or shared with others.

    Args:
        handle: What it does with the event.
        is_dormant: Whether it is.
        wakes: Whether the event wakes it.
        account: That of its guard.
        options: The others of its guard.
    """

    def __init__(
        self,
        handle: Callable[[Any], object],
        *,
        is_dormant: bool = False,
        wakes: bool = False,
        account: Account | None = None,
        **options: Any,
    ) -> None:
        self.is_dormant = is_dormant
        self.guard = Guard("part", account, **options)
        self.subscriber = Subscriber(self, self.guard, handle, wakes)


def channel(*parts: Part, account: Account | None = None) -> Channel:
    made = Channel(account or Account())
    made.subscribers = tuple(part.subscriber for part in parts)
    return made


def in_a_thread(work: Callable[..., object], *arguments: object) -> None:
    thread = threading.Thread(target=work, args=arguments)
    thread.start()
    thread.join()


def by_call(part: Part, account: Account) -> Callable[[Any], object]:
    return partial(part.guard.run, part.subscriber.handle)


def by_event(part: Part, account: Account) -> Callable[[Any], object]:
    return channel(part, account=account).emit


WAYS = (by_call, by_event)
either_way = pytest.mark.parametrize("reach", WAYS)
"""A sensor is called through its guard, or told of an event behind a channel."""


@either_way
def test_the_first_error_switches_the_sensor_off_and_is_logged_once(
    reach: Reach, caplog: pytest.LogCaptureFixture
) -> None:
    """After an error nothing is called any more; the log has the traceback, once."""
    seen: list[int] = []

    def fail(event: int) -> None:
        seen.append(event)
        _fail()

    part = Part(fail)
    call = reach(part, Account())
    with caplog.at_level(logging.WARNING):
        call(1)
        call(2)

    assert (part.guard.errors, part.guard.off, seen) == (1, True, [1])
    assert [r.args for r in caplog.records] == [("part",)]
    assert caplog.records[0].exc_info is not None


@either_way
def test_a_stack_that_the_program_has_filled_is_no_error_of_the_sensor(reach: Reach) -> None:
    """Wherever in a call it is full, also where another exception is made of that; the next call is taken."""
    account = Account()
    seen: list[str] = []

    def note(event: str) -> None:
        seen.append(event)

    def work(event: str) -> None:
        try:
            note(event)
        except RecursionError:
            msg = "argument 2: RecursionError"  # as ctypes does
            raise ValueError(msg) from None

    part = Part(work, account=account)
    call = reach(part, account)

    def fill(calls: int) -> None:
        call("deep")
        fill(calls + 1)

    with pytest.raises(RecursionError):
        fill(0)
    missed = part.guard.missed
    call("after")

    assert (seen[-1], part.guard.off, account.is_mine) == ("after", False, False)
    assert 0 < missed == part.guard.missed


@either_way
def test_a_sensor_that_fills_the_stack_itself_is_switched_off(reach: Reach) -> None:
    """It would do so with each call."""

    def endless(event: object) -> None:
        endless(event)

    part = Part(endless)
    reach(part, Account())(1)

    assert (part.guard.errors, part.guard.missed) == (1, 0)


@either_way
def test_a_failure_is_handed_on_once(reach: Reach) -> None:
    """The guard and the exception arrive; an error there does no harm."""
    seen: list[tuple[Guard, Exception]] = []

    def failed(guard: Guard, error: Exception) -> None:
        seen.append((guard, error))
        _fail()

    part = Part(_fail, failed=failed)
    call = reach(part, Account())
    call(1)
    call(2)

    ((guard, error),) = seen
    assert (guard, str(error), part.guard.errors) == (part.guard, "broken", 1)


@either_way
@pytest.mark.parametrize("is_thread_safe", [False, True])
def test_an_interrupt_passes_and_the_sensor_goes_on(reach: Reach, *, is_thread_safe: bool) -> None:
    """Ctrl-C is not an error of the sensor, and nothing counts as running after it."""
    account = Account()
    seen: list[str] = []

    def interrupted(event: str) -> None:
        if event == "first":
            raise KeyboardInterrupt
        seen.append(event)

    call = reach(Part(interrupted, account=account, is_thread_safe=is_thread_safe), account)
    with pytest.raises(KeyboardInterrupt):
        call("first")
    rested = account.spent_ns
    assert not account.is_mine
    assert account.spent_ns == rested  # nothing is running any more
    call("second")

    assert seen == ["second"]


@either_way
@pytest.mark.parametrize("is_thread_safe", [False, True])
def test_only_a_sensor_that_is_thread_safe_is_at_work_in_two_threads(
    reach: Reach, *, is_thread_safe: bool
) -> None:
    """The state of any other is made for one, and it counts what it missed."""
    seen: list[str] = []

    def work(event: str) -> None:
        if event == "mine":
            in_a_thread(call, "of another")
        seen.append(event)

    part = Part(work, is_thread_safe=is_thread_safe)
    call = reach(part, Account())
    call("mine")
    call("after")

    assert seen == ["of another", "mine", "after"][0 if is_thread_safe else 1 :]
    assert (part.guard.missed, part.guard.errors) == (0 if is_thread_safe else 1, 0)


@either_way
def test_the_account_counts_nested_calls_once(reach: Reach) -> None:
    """Calls of another thread meanwhile are part of the outermost."""
    account = Account()

    def take(ns: int) -> None:
        until = perf_counter_ns() + ns
        while perf_counter_ns() < until:
            pass

    inner = [reach_inner(Part(take, account=account), account) for reach_inner in WAYS]
    mine: list[bool] = []

    def work(_event: object) -> None:
        for call in inner:
            call(1_000_000)
        in_a_thread(inner[1], 1_000_000)
        mine.append(account.is_mine)

    began = perf_counter_ns()
    reach(Part(work, account=account), account)(1)
    passed = perf_counter_ns() - began
    spent = account.spent_ns
    assert mine == [True]
    assert 3_000_000 <= spent <= passed
    assert (account.spent_ns, account.is_mine) == (spent, False)


def account_beside(on: list[str]) -> Account:
    """Return an account of a program in whose thread some modes are on."""
    return Account(Modes(lambda: len(on), on.copy, lambda _: on.clear(), on.extend))


@either_way
@pytest.mark.parametrize("error", [None, ValueError(), KeyboardInterrupt()])
def test_modes_of_the_program_are_put_aside_while_a_sensor_is_at_work(
    reach: Reach, error: BaseException | None
) -> None:
    """In its outermost call, and put on again however that ends."""
    on, seen = ["mode"], list[list[str]]()
    account = account_beside(on)
    inner = reach(Part(lambda _: seen.append(on.copy()), account=account), account)

    def work(event: int) -> None:
        inner(event)
        seen.append(on.copy())
        if error is not None:
            raise error

    with suppress(KeyboardInterrupt):
        reach(Part(work, account=account), account)(1)

    assert (seen, on, account.aside) == ([[], []], ["mode"], {})


def after_calls(code: CodeType) -> set[int]:
    """Return where Python may raise an interrupt in ``code``: at what follows a call."""
    instructions = list(dis.get_instructions(code))
    pairs = itertools.pairwise(instructions)
    return {later.offset for earlier, later in pairs if earlier.opname.startswith("CALL")}


@pytest.mark.parametrize("is_thread_safe", [False, True])
def test_an_interrupt_between_any_two_calls_of_a_channel_is_that_interrupt(
    *, is_thread_safe: bool
) -> None:
    """It is ``KeyboardInterrupt``; the next event is taken, and nothing counts as running."""
    code = PythonChannel.emit.__code__
    places = after_calls(code)
    on = ["mode"]
    account = account_beside(on)

    def interrupt_at(place: int) -> Callable[..., Any]:
        def trace(frame: FrameType, event: str, _argument: object) -> Callable[..., Any] | None:
            if frame.f_code is not code:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode" and frame.f_lasti == place:
                met.append(place)
                raise KeyboardInterrupt
            return trace

        return trace

    met: list[int] = []
    for place in sorted(places):
        seen: list[str] = []
        part = Part(seen.append, account=account, is_thread_safe=is_thread_safe)
        events = PythonChannel(account)
        events.subscribers = (part.subscriber,)
        emit = events.emit
        before = sys.gettrace()
        sys.settrace(interrupt_at(place))
        try:
            emit("event")
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        assert (account.is_mine, on) == (False, ["mode"])
        emit("again")
        rested = account.spent_ns
        assert (seen[-1], part.guard.missed) == ("again", 0)
        assert account.spent_ns == rested
    assert len(met) > 4


def test_all_subscribers_are_notified_of_an_event_in_order() -> None:
    """Each once, with the event itself, also behind one that fails."""
    seen: list[Any] = []
    parts = [Part(lambda event, n=n: seen.append((n, event))) for n in range(3)]
    event = object()

    assert list(channel(parts[0], Part(_fail), *parts[1:]).emit(event)) == []
    assert seen == [(0, event), (1, event), (2, event)]


def test_a_subscriber_that_failed_elsewhere_is_not_called_either() -> None:
    """A guard is one for all that a sensor does."""
    seen: list[Any] = []
    part = Part(seen.append)
    part.guard.run(_fail)
    channel(part).emit(1)

    assert seen == []


def test_a_dormant_subscriber_is_called_only_with_what_wakes_it() -> None:
    """Whether it is dormant is asked at each event."""
    seen: list[Any] = []
    asleep = Part(lambda event: seen.append(("asleep", event)), is_dormant=True)
    roused = Part(lambda event: seen.append(("roused", event)), is_dormant=True, wakes=True)
    events = channel(asleep, roused)
    events.emit(1)
    asleep.is_dormant = False
    events.emit(2)
    asleep.is_dormant = True
    events.emit(3)

    assert seen == [("roused", 1), ("asleep", 2), ("roused", 2), ("roused", 3)]


def test_an_event_of_nobody_who_is_awake_costs_nothing() -> None:
    """The account is not even opened."""
    account = Account()
    channel(Part(_fail, is_dormant=True), account=account).emit(1)

    assert account.spent_ns == 0


@pytest.mark.parametrize("is_thread_safe", [False, True])
def test_what_a_subscriber_does_itself_is_not_reported_to_it(*, is_thread_safe: bool) -> None:
    """By the same channel, and by its guard; the others hear of it."""
    seen: list[Any] = []

    def again(event: int) -> None:
        seen.append(("first", event))
        events.emit(event + 1)
        first.guard.run(seen.append, "never")

    first = Part(again, is_thread_safe=is_thread_safe)
    events = channel(first, Part(lambda event: seen.append(("second", event))))
    events.emit(1)

    assert seen == [("first", 1), ("second", 2), ("second", 1)]
    assert first.guard.missed == 0


def test_what_is_to_be_called_at_the_end_comes_with_its_guard() -> None:
    """Of those who want it, in order; one that fails then is off like any other."""
    seen: list[Any] = []
    wants = Part(lambda event: lambda: seen.append(event))
    fails = Part(lambda _event: _fail)
    ends = channel(wants, Part(lambda _event: None), fails).emit(7)
    assert seen == []
    for guard, end in ends:
        guard.run(end)

    assert [guard for guard, _ in ends] == [wants.guard, fails.guard]
    assert seen == [7]
    assert (wants.guard.off, fails.guard.off) == (False, True)
