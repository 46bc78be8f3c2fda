"""The fail-open boundary."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest

from ampwatch.guard import Account, Guard


def _fail(*_: Any) -> None:
    msg = "broken"
    raise ValueError(msg)


def test_a_working_sensor_is_called_with_its_arguments() -> None:
    """The guard passes the arguments on and stays out of the way."""
    seen = []
    guard = Guard("s")
    guard.run(lambda *a: seen.append(a), 1, "two")

    assert (seen, guard.errors, guard.off) == ([(1, "two")], 0, False)


def test_the_first_error_switches_the_sensor_off_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After an error nothing is called any more; the log has the traceback, once."""
    seen: list[int] = []
    guard = Guard("ranges")
    with caplog.at_level(logging.WARNING):
        guard.run(_fail)
        guard.run(_fail)
        guard.run(seen.append, 1)

    assert (guard.errors, guard.off, seen) == (1, True, [])
    assert [r.args for r in caplog.records] == [("ranges",)]
    assert caplog.records[0].exc_info is not None


def test_a_call_from_within_a_call_is_ignored() -> None:
    """What a sensor does itself is not observed by it."""
    depth = []
    guard = Guard("s")

    def work() -> None:
        depth.append(1)
        guard.run(work)

    guard.run(work)

    assert depth == [1]


def test_time_is_counted_also_when_the_work_fails() -> None:
    """The cost of ampwatch includes the cost of its failures."""
    guard = Guard("s")
    guard.run(_fail)

    assert guard.spent_ns > 0


def test_an_interrupt_passes_and_the_sensor_goes_on() -> None:
    """Ctrl-C is not an error of the sensor."""
    guard = Guard("s")

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard.run(interrupted)
    seen: list[int] = []
    guard.run(seen.append, 1)

    assert seen == [1]


def test_a_log_handler_that_raises_is_kept_from_training_too() -> None:
    """The user's logging configuration cannot break a step either."""

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            msg = "disk full"
            raise OSError(msg)

    handler = Broken()
    logger = logging.getLogger("ampwatch.guard")
    logger.addHandler(handler)
    try:
        Guard("s").run(_fail)
    finally:
        logger.removeHandler(handler)


def test_guards_of_one_account_count_nested_calls_once() -> None:
    """And a call of another thread meanwhile is part of the outermost."""
    account = Account()
    outer, inner = Guard("outer", account), Guard("inner", account)
    seen = []

    def work() -> None:
        inner.run(lambda: None)
        thread = threading.Thread(target=inner.run, args=(lambda: None,))
        thread.start()
        thread.join()
        seen.append(account.spent_ns)

    began = time.perf_counter_ns()
    outer.run(work)
    took = time.perf_counter_ns() - began
    rested = account.spent_ns

    assert 0 < seen[0] <= outer.spent_ns == inner.spent_ns <= took
    assert account.spent_ns == rested


def test_a_guard_returns_what_the_work_returns_and_none_once_it_is_off() -> None:
    """Callers need no place of their own for a result."""
    guard = Guard("s")

    assert guard.run(lambda a, b: a + b, 2, 3) == 5
    assert guard.run(_fail) is None
    assert guard.run(lambda: 5) is None


def test_a_thread_safe_sensor_is_at_work_in_several_threads_at_a_time() -> None:
    """In each of them once: what it does itself is not observed by it there either."""
    guard = Guard("s", is_thread_safe=True)
    both = threading.Barrier(2)
    seen = []

    def work() -> None:
        both.wait(10)
        guard.run(seen.append, "from within")
        seen.append(threading.get_ident())
        both.wait(10)

    threads = [threading.Thread(target=guard.run, args=(work,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(seen) == sorted(t.ident for t in threads)
    assert (guard.missed, guard.errors) == (0, 0)


def test_any_other_sensor_is_at_work_in_one_thread_and_counts_what_it_missed() -> None:
    """Its state is not made for more."""
    guard = Guard("s")
    seen: list[int] = []

    def work() -> None:
        thread = threading.Thread(target=guard.run, args=(seen.append, 1))
        thread.start()
        thread.join()

    guard.run(work)

    assert (guard.missed, seen) == (1, [])


def test_what_runs_within_a_guarded_call_is_ours_in_each_thread_on_its_own() -> None:
    """Two threads at once, and one that is in none; for all monitors of the process."""
    account = Account()
    seen = {}
    both = threading.Barrier(2)

    def work(name: str) -> None:
        both.wait(10)
        seen[name] = account.is_mine
        both.wait(10)

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
