"""Lanes: answers of one kind one after another, those of different kinds beside one another."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from ampwatch.host.daemon.server import Lane


@pytest.fixture
def lane() -> Iterator[Lane]:
    lane = Lane("test", max_waiting=3)
    lane.start()
    yield lane
    lane.close()


def test_jobs_are_done_in_order_and_their_errors_are_raised_where_they_are_waited_for(
    lane: Lane,
) -> None:
    """One that fails does not end the lane."""
    failed = lane.ask(lambda: 1 // 0)
    done = lane.ask(lambda: "done")

    with pytest.raises(ZeroDivisionError):
        failed.result(60)
    assert done.result(60) == "done"


def test_no_more_jobs_wait_than_are_bearable(lane: Lane) -> None:
    """The next one is refused at once, for as long as none has ended."""
    begun, go_on = threading.Event(), threading.Event()
    lane.ask(lambda: (begun.set(), go_on.wait(60)))
    begun.wait(60)
    waiting = [lane.ask(lambda: None) for _ in range(3)]

    with pytest.raises(queue.Full):
        lane.ask(lambda: None)

    go_on.set()
    waiting[-1].result(60)
    lane.ask(lambda: None).result(60)
