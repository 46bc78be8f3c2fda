"""Times of a device whose stream passes marks when a test says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ampwatch.training.devices import Link
from ampwatch.training.sensors.time.device_clock import MAX_FLYING, MAX_MARKS, DeviceClock
from ampwatch.wire.records import StepPhase

DEVICE = torch.device("meta")
DATA, FORWARD, BACKWARD = StepPhase.DATA, StepPhase.FORWARD, StepPhase.BACKWARD


class Timer:
    """An event: the time at which its stream comes to it, once it has passed."""

    def __init__(self, link: PlayedLink) -> None:
        self.link = link
        self.at_ms = 0.0
        self.on = ""

    def record(self, stream: str) -> None:
        self.at_ms, self.on = self.link.now_ms, stream

    def query(self) -> bool:
        return self.at_ms <= self.link.passed_ms

    def elapsed_time(self, end: Timer) -> float:
        assert self.query()
        assert end.query()
        assert self.on == end.on, "no duration lies between two streams"
        return end.at_ms - self.at_ms


class PlayedLink(Link):
    """A device that is as far as ``passed_ms`` while the host has given it work up to ``now_ms``."""

    def __init__(self) -> None:
        self.now_ms = self.passed_ms = 0.0
        self.stream_now = "main"
        self.made: list[Timer] = []

    def make_timer(self, device: torch.device) -> Any:
        self.made.append(Timer(self))
        return self.made[-1]

    def stream(self, device: torch.device) -> Any:
        return self.stream_now


@pytest.fixture
def link() -> PlayedLink:
    return PlayedLink()


def iterate(clock: DeviceClock, link: PlayedLink, step: int) -> None:
    """Give the device an iteration: it waits 3 ms, computes 5 ms forward and 7 ms backward."""
    clock.begin(step)
    for place, after in enumerate((3.0, 5.0, 7.0)):
        clock.mark(place)
        link.now_ms += after
    clock.end([DATA, FORWARD, BACKWARD])


def test_between_two_marks_lies_what_the_device_did(link: PlayedLink) -> None:
    """Once it has passed the last one, and not before."""
    clock = DeviceClock(DEVICE, link)
    iterate(clock, link, 3)
    assert clock.arrived() == []

    link.passed_ms = link.now_ms
    ((step, phases),) = clock.arrived()

    assert step == 3
    assert [phases[p] for p in (DATA, FORWARD, BACKWARD)] == pytest.approx([0.003, 0.005, 0.007])
    assert clock.arrived() == []


def test_marks_lie_on_the_stream_that_the_iteration_began_on(link: PlayedLink) -> None:
    """A prefetcher asks for its batch on a stream of its own, which is elsewhere."""
    clock = DeviceClock(DEVICE, link)
    clock.begin(3)
    link.stream_now = "side"
    clock.mark(0)
    link.now_ms += 2.0
    link.stream_now = "main"
    clock.mark(1)
    clock.end([DATA, FORWARD])
    link.passed_ms = link.now_ms

    assert clock.arrived()[0][1][DATA] == pytest.approx(0.002)


def test_events_are_used_again(link: PlayedLink) -> None:
    """A million steps make no more of them than the first few."""
    clock = DeviceClock(DEVICE, link)
    for step in range(100):
        iterate(clock, link, step)
        link.passed_ms = link.now_ms
        clock.arrived()

    assert len(link.made) <= 6


def test_a_device_that_is_far_behind_is_not_given_more_marks(link: PlayedLink) -> None:
    """Nothing waits; what was marked arrives in order when the device has come to it."""
    clock = DeviceClock(DEVICE, link)
    for step in range(10):
        iterate(clock, link, step)
    link.passed_ms = link.now_ms

    assert [step for step, _ in clock.arrived()] == list(range(MAX_FLYING))


def test_an_iteration_of_very_many_phases_is_not_timed(link: PlayedLink) -> None:
    """Long accumulation; the next one is."""
    clock = DeviceClock(DEVICE, link)
    clock.begin(0)
    for place in range(MAX_MARKS):
        clock.mark(place)
    clock.end([FORWARD] * MAX_MARKS)
    iterate(clock, link, 1)
    link.passed_ms = link.now_ms

    assert [step for step, _ in clock.arrived()] == [1]


def test_a_moment_without_a_mark_is_in_the_phase_before_it(link: PlayedLink) -> None:
    """Of another thread: the stream is not asked what it does meanwhile."""
    clock = DeviceClock(DEVICE, link)
    clock.begin(0)
    for place, after in ((0, 1.0), (2, 2.0)):
        clock.mark(place)
        link.now_ms += after
    clock.end([FORWARD, DATA, BACKWARD])
    link.passed_ms = link.now_ms

    phases = clock.arrived()[0][1]
    assert [phases[p] for p in (FORWARD, DATA, BACKWARD)] == pytest.approx([0.001, 0.0, 0.002])


def test_an_iteration_that_is_dropped_does_not_arrive(link: PlayedLink) -> None:
    """Nor is anything marked in it; its events are used again."""
    clock = DeviceClock(DEVICE, link)
    clock.begin(0)
    clock.mark(0)
    clock.drop()
    clock.mark(1)
    clock.end([FORWARD, DATA])
    iterate(clock, link, 1)
    link.passed_ms = link.now_ms

    assert [step for step, _ in clock.arrived()] == [1]
    assert len(link.made) == 5
