"""Ctrl-C in a cell, caught, and the cell run again: nothing that happens after it goes by unheard."""

from __future__ import annotations

import linecache
import logging
import os
import random
import signal
import sys
import traceback
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from torch import nn
from torch.amp import GradScaler

import ampwatch
from ampwatch.guard import Account, Guard, OneAtATime, Suppress, unbroken
from ampwatch.training.hooks import profilers, sources, taps
from ampwatch.training.hooks.channel import Channel, PythonChannel, Subscriber
from ampwatch.training.monitor import _open
from ampwatch.training.sensors.window.requests import INTERVAL_NS, Requests
from benchmarks.interrupts import Training, cycle, interrupt, interrupt_lines
from tests.promises.conftest import ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from ampwatch.guard import Handler

pytestmark = ahead

RULES = ("guard.py", "training/hooks", "training/iteration", "training/transfer/readback.py")
"""Where an interrupt of before could blind: lines of theirs are interrupted, in the night each."""


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Findings of storms that were made on purpose are not logged."""
    with caplog.at_level(logging.CRITICAL, logger="ampwatch"):
        yield


@pytest.mark.nightly
def test_signals_of_another_process_blind_nothing() -> None:
    """At random instants, each caught once around the loop; the long one is the benchmark of the name."""
    result = interrupt("standard", 25, seed=1)

    assert (result["wrong"], result["interrupts"]) == ([], 25)


@pytest.mark.rotating
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_an_interrupt_at_lines_of_a_plain_step_blinds_nothing(every: int) -> None:
    """Of what counts, guards and closes iterations; deep and the rest are for the benchmark."""
    result = interrupt_lines("light", modules=RULES, every=every)

    assert result["wrong"] == []
    assert result["interrupts"] > 100 / every


@pytest.mark.nightly
@pytest.mark.parametrize("level", ["standard", "deep"])
def test_an_interrupt_at_some_lines_of_a_sampled_step_blinds_nothing(level: str) -> None:
    """Where hooks and modes come and go with the iteration."""
    result = interrupt_lines(level, every=397)

    assert result["wrong"] == []
    assert result["interrupts"] > 2


def test_a_hundred_interrupted_readings_lose_no_row() -> None:
    """Each leaves a row with nobody, and there are only some dozens."""
    training = Training("light")
    readback = training.watch._session._readback
    for _ in range(100):
        assert readback.open() is not None
    missing = training.deaf(skips=30)

    assert missing + training.end() == []


@contextmanager
def handled_by(handler: Handler, *signals: signal.Signals) -> Iterator[None]:
    """Have the program handle some signals in its own way."""
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_what_is_unbroken_ends_before_a_handler_is_called(error: type[BaseException]) -> None:
    """The program's own are called once for each signal, after it, and are the handlers again."""
    done: list[object] = []

    @unbroken
    def work() -> None:
        for number in (signal.SIGINT, signal.SIGALRM, signal.SIGINT):
            signal.raise_signal(number)
        done.append("all of it")

    def handler(number: int, _frame: FrameType | None) -> None:
        done.append(number)
        raise error

    with handled_by(handler, signal.SIGINT, signal.SIGALRM):
        with pytest.raises(error):
            work()
        assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGALRM) is handler

    assert done == ["all of it", signal.SIGINT, signal.SIGALRM]


class Limit:
    """A time limit as programs write it, and what it raises, in some forms."""

    def method(self, _number: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    def arguments(self, *_arguments: object) -> None:
        raise TimeoutError

    def deeper(self, number: int, frame: FrameType | None) -> None:
        self.method(number, frame)


@pytest.mark.parametrize("form", ["method", "arguments", "deeper"])
@pytest.mark.parametrize("way", [*dict.fromkeys([Channel, PythonChannel]), Guard])
def test_what_a_handler_of_a_signal_raises_is_the_programs(form: str, way: type) -> None:
    """An `Exception` in the middle of a sensor, and none of the sensor's."""
    guard = Guard("s")
    heard: list[object] = []

    def handle(event: object) -> None:
        if event == "slow":
            signal.raise_signal(signal.SIGALRM)
        heard.append(event)

    tell: Callable[[object], object] = partial(guard.run, handle)
    if way is not Guard:
        channel = way(Account())
        sensor = SimpleNamespace(is_dormant=False)
        channel.subscribers = (Subscriber(sensor, guard, handle, wakes=False),)
        tell = channel.emit
    with handled_by(getattr(Limit(), form), signal.SIGALRM), pytest.raises(TimeoutError):
        tell("slow")
    tell("next")

    assert (heard, guard.errors, guard._holders) == (["next"], 0, {})


def test_what_a_handler_that_had_to_wait_raises_is_the_programs() -> None:
    """A sensor that places hooks is no more to blame than one that reads."""
    guard = Guard("s")

    with handled_by(Limit().method, signal.SIGALRM), pytest.raises(TimeoutError):
        guard.run(unbroken(partial(signal.raise_signal, signal.SIGALRM)))

    assert not guard.off


def test_what_a_sensor_raises_after_a_signal_was_handled_is_its_own() -> None:
    """A handler that returns is no excuse."""
    guard = Guard("s")

    def work() -> None:
        signal.raise_signal(signal.SIGALRM)
        raise TimeoutError

    with handled_by(lambda *_: None, signal.SIGALRM):
        guard.run(work)

    assert guard.off


@pytest.mark.nightly
def test_time_limits_at_random_instants_of_a_watched_step_blind_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`signal.setitimer` with a handler that raises; each is caught once around the loop.

    Python swallows what comes in a `__del__` or in the callback of a weak reference. Those that are
    run in a step are PyTorch's and the test's; in one of ampwatch's it would be ampwatch's fault. It also
    swallows what a `__del__` raises because a limit, which was caught, has left its object half made.
    """
    training, rng = Training("standard"), random.Random(1)
    raised = caught = 0
    swallowed: list[tuple[type[BaseException], str]] = []
    monkeypatch.setattr(
        sys,
        "unraisablehook",
        lambda given: swallowed.append(
            (given.exc_type, "".join(traceback.format_tb(given.exc_traceback)))
        ),
    )

    def handler(_number: int, _frame: FrameType | None) -> None:
        nonlocal raised
        raised += 1
        raise TimeoutError

    with handled_by(handler, signal.SIGALRM):
        for _ in range(100):
            training.tidy()
            due = raised
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0005, 0.006))
                while raised == due:
                    training.step()
            except TimeoutError:
                caught += 1

    wrong = training.deaf(skips=30) + training.end()
    lost = sum(kind is TimeoutError for kind, _ in swallowed)
    if raised != 100 or caught != raised - lost:
        wrong.append(f"{raised} raised, {caught} caught, swallowed by Python: {swallowed}")
    wrong += [at for _, at in swallowed if str(Path(ampwatch.__file__).parent) in at]
    assert wrong == []


def ringing(original: Callable[..., Any], at: int) -> Callable[..., Any]:
    """Return a function in whose call of this number the time is over."""
    came = count()

    def call(*args: Any, **kwargs: Any) -> Any:
        if next(came) == at:
            signal.raise_signal(signal.SIGALRM)
        return original(*args, **kwargs)

    return call


def test_a_time_limit_while_the_path_of_a_file_is_resolved_is_the_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python passes over each `OSError` there, and `TimeoutError` is one."""
    training = Training("standard")
    monkeypatch.setattr(os, "lstat", ringing(os.lstat, 1))
    monkeypatch.setattr(sources, "_is_users", {})
    with handled_by(Limit().method, signal.SIGALRM), pytest.raises(TimeoutError):
        cycle(training)

    assert training.deaf() + training.end() == []


def test_a_time_limit_while_a_line_of_source_is_read_is_the_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python passes over each `OSError` there as well; the line is read at the next call."""
    monkeypatch.setattr(linecache, "cache", {})
    monkeypatch.setattr(os, "stat", ringing(os.stat, 0))
    with handled_by(Limit().method, signal.SIGALRM), pytest.raises(TimeoutError):
        sources.line_of(__file__, 1)

    assert sources.line_of(__file__, 1).startswith('"""Ctrl-C in a cell')


def test_a_time_limit_while_a_request_for_a_trace_is_looked_for_is_the_programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No request there is an `OSError`, too, and no news."""
    requests = Requests(SimpleNamespace(ring_path=tmp_path / "a.ring"))  # type: ignore[arg-type]
    assert requests.newest(INTERVAL_NS) is None

    looked, came = os.lstat, count()

    def lstat(*args: Any, **kwargs: Any) -> os.stat_result:
        next(came)
        signal.raise_signal(signal.SIGALRM)
        return looked(*args, **kwargs)

    monkeypatch.setattr(os, "lstat", lstat)
    with handled_by(Limit().method, signal.SIGALRM), pytest.raises(TimeoutError):
        requests.newest(2 * INTERVAL_NS)

    assert next(came) == 1


def test_what_is_suppressed_is_what_no_handler_of_a_signal_raised() -> None:
    """The same class of error, from a file and from a time limit."""
    with Suppress(OSError):
        raise TimeoutError

    with (
        handled_by(Limit().method, signal.SIGALRM),
        pytest.raises(TimeoutError),
        Suppress(OSError),
    ):
        signal.raise_signal(signal.SIGALRM)

    with pytest.raises(ValueError, match="other"), Suppress(OSError):
        raise ValueError("other")  # noqa: EM101 - no message for a person


def test_a_time_limit_while_a_monitor_is_made_is_no_refusal_of_the_machine() -> None:
    """`TimeoutError` is an `OSError`; nothing of the half-made monitor stays."""
    model, before = nn.Linear(2, 2), len(_open)

    def limit(*_arguments: object) -> None:
        raise TimeoutError

    class Slow(GradScaler):
        """Its state is read at set-up."""

        def is_enabled(self) -> bool:
            signal.raise_signal(signal.SIGALRM)
            return super().is_enabled()

    with handled_by(limit, signal.SIGALRM), pytest.raises(TimeoutError):
        ampwatch.monitor(model, Slow("cpu"), serve=False)

    assert (len(_open), len(model._forward_hooks), taps._taps) == (before, 0, {})


def test_an_interrupt_while_other_profilers_are_listened_for_leaves_none_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five methods of PyTorch are replaced, and a Ctrl-C comes after the second."""
    before, number = dict(taps._taps), count()

    def listen(*args: Any, **kwargs: Any) -> Any:
        listener = taps.listen(*args, **kwargs)
        if next(number) == 1:
            signal.raise_signal(signal.SIGINT)
        return listener

    monkeypatch.setattr(profilers, "listen", listen)
    others = profilers.OtherProfilers(lambda _reason: None)
    with pytest.raises(KeyboardInterrupt):
        others.install()
    others.remove()

    assert next(number) == 5
    assert taps._taps == before


def test_one_call_at_a_time_is_let_in_again_after_an_interrupt() -> None:
    """Nobody is in there any more; a call from within is not let in."""
    gate = OneAtATime()
    seen: list[str] = []

    def interrupted() -> None:
        assert not gate.run(seen.append, "from within")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gate.run(interrupted)

    assert gate.run(seen.append, "after")
    assert gate.run(seen.append, "once more")
    assert seen == ["after", "once more"]
