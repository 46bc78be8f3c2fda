"""Ctrl-C in a cell, caught, and the cell run again: nothing that happens after it goes by unheard."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING

import pytest

from ampwatch.guard import OneAtATime, unbroken
from benchmarks.interrupts import Training, interrupt, interrupt_lines
from tests.promises.conftest import ahead

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

pytestmark = ahead

RULES = ("guard.py", "training/hooks", "training/iteration", "training/transfer/readback.py")
"""Where an interrupt of before could blind: each line of theirs is interrupted."""


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Findings of storms that were made on purpose are not logged."""
    with caplog.at_level(logging.CRITICAL, logger="ampwatch"):
        yield


def test_signals_of_another_process_blind_nothing() -> None:
    """At random instants, each caught once around the loop; the long one is the benchmark of the name."""
    result = interrupt("standard", 25, seed=1)

    assert (result["wrong"], result["interrupts"]) == ([], 25)


def test_an_interrupt_at_each_line_of_a_plain_step_blinds_nothing() -> None:
    """Of what counts, guards and closes iterations; deep and the rest are for the benchmark."""
    result = interrupt_lines("light", modules=RULES)

    assert result["wrong"] == []
    assert result["interrupts"] > 100


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


def test_what_is_unbroken_ends_before_the_interrupt_comes() -> None:
    """The program's own handler is called once, after it, and is the handler again."""
    done: list[str] = []

    @unbroken
    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append("all of it")

    def handler(_number: int, _frame: FrameType | None) -> None:
        done.append("handled")
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)

    assert done == ["all of it", "handled"]


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
    assert (seen, gate.is_taken) == (["after"], False)
