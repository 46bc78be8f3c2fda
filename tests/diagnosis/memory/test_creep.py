"""Memory that grows is told apart from memory that is noisy, warms up, fills or swings."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.detector import Shared
from ampwatch.diagnosis.evidence.memory import HeldParts, Holding, Memory, MemoryPlace, MemoryRead
from ampwatch.diagnosis.memory.creep import LONG, MemoryCreep, MemoryHistory, Point
from ampwatch.wire.records import Finding

KIB, MIB, GIB = 2**10, 2**20, 2**30
SECOND = 10**9
APART = 16


def leak(step: int) -> float:
    return GIB + 100 * KIB * step


GROWING: dict[str, Callable[[int], float]] = {
    "evenly": leak,
    "with noise": lambda step: leak(step) + random.Random(step).uniform(0, 8 * MIB),
    "after a warm-up": lambda step: leak(step) + 2 * GIB * min(step, 300) / 300,
    "under evaluations": lambda step: leak(step) + GIB * (step % 160 < 32),
    "in jumps of an allocator": lambda step: leak(step) // (2 * MIB) * (2 * MIB),
    "faster and faster": lambda step: GIB + 30 * step**2,
}

NOT_GROWING: dict[str, Callable[[int], float]] = {
    "not at all": lambda _step: GIB,
    "but noisy": lambda step: GIB + random.Random(step).uniform(0, 256 * MIB),
    "but warming up": lambda step: GIB + 2 * GIB * (1 - math.exp(-step / 150)),
    "but once": lambda step: GIB + 64 * MIB * (step > 1500),
    "until an epoch is over": lambda step: GIB + MIB * (step % 400),
    "but swinging": lambda step: GIB + 64 * MIB * math.sin(step / 200),
    "until a buffer is full": lambda step: leak(min(step, 1300)),
    "as a logarithm does": lambda step: GIB + 64 * MIB * math.log1p(min(step, 500)),
    "but falling": lambda step: 4 * GIB - 100 * KIB * step,
}


def history_of(memory: Callable[[int], float], steps: int = 2048) -> MemoryHistory:
    history = MemoryHistory()
    for step in range(0, steps, APART):
        history.add(Point(step, step * SECOND, int(memory(step)), -1))
    return history


@pytest.mark.parametrize("memory", GROWING.values(), ids=GROWING.keys())
def test_memory_that_grows_is_seen_at_its_rate(memory: Callable[[int], float]) -> None:
    """As a straight line through its ends has it, within what noise and swings make of that."""
    growth = history_of(memory).growth()

    assert growth is not None
    exact = (memory(2032) - memory(1024)) / 1008
    exact = exact if memory is GROWING["faster and faster"] else 100 * KIB
    assert growth.rate == pytest.approx(exact, rel=0.15)
    assert growth.seconds == pytest.approx(1.0)
    assert (growth.since, growth.step) == (1024, 2032)


@pytest.mark.parametrize("memory", NOT_GROWING.values(), ids=NOT_GROWING.keys())
def test_memory_that_does_not_grow_for_good_is_left_alone(memory: Callable[[int], float]) -> None:
    assert history_of(memory).growth() is None


def observed(
    memory: Callable[[int], float],
    kept: Callable[[int], HeldParts | None] = lambda _step: None,
    *,
    limit: int = 64 * GIB,
    place: MemoryPlace = MemoryPlace.HOST,
    allocations: Callable[[int], int] = lambda _step: -1,
    steps: int = 2048,
) -> list[Finding]:
    """Return what is found in a training whose memory is read in each 16th iteration."""
    book = FindingBook(lambda _news: None)
    creep = MemoryCreep(Shared(book))
    for step in range(0, steps, APART):
        used = int(memory(step))
        read = Memory(place, used, used, limit=limit, allocations=allocations(step))
        creep.observe(MemoryRead(step, step * SECOND, (read,), kept(step)))
    return book.findings


def keeps(holding: Holding) -> Callable[[int], HeldParts | None]:
    """Return what is kept from the first iteration on."""
    return lambda step: HeldParts(holding, step // APART, 0, "train.py:9") if step > APART else None


@pytest.mark.parametrize(
    ("holding", "where", "words"),
    [
        (Holding.LOSS, "loss", "The losses are kept, with their graphs"),
        (Holding.SUM, "loss", "as a running total is"),
        (Holding.PART, "", "by outputs or a state"),
    ],
)
def test_what_keeps_the_memory_is_named(holding: Holding, where: str, words: str) -> None:
    """Growth alone is no finding for as long; with how much it grows, and when none is left."""
    (finding,) = observed(leak, keeps(holding))

    assert (finding.kind, finding.where, finding.source) == ("memory_creep", where, "train.py:9")
    assert words in finding.summary
    evidence = finding.evidence
    assert evidence["bytes_per_iteration"] == pytest.approx(100 * KIB, rel=0.01)
    left = (64 * GIB - leak(2032)) / (100 * KIB)
    assert evidence["iterations_left"] == pytest.approx(left, rel=0.01)
    assert evidence["hours_left"] == pytest.approx(left / 3600, rel=0.01)
    assert observed(leak) == []


def test_what_is_kept_for_less_than_a_thousand_iterations_is_left_alone() -> None:
    """The collector may free it, or the mean of a window needs it."""
    short = observed(
        leak, lambda step: HeldParts(Holding.LOSS, 60, max(step - LONG + 1, 0)), steps=4 * LONG
    )

    assert short == []


def test_graphs_that_are_kept_and_take_no_memory_are_left_alone() -> None:
    assert observed(lambda step: GIB + 100 * step, keeps(Holding.LOSS)) == []


def test_memory_that_is_used_up_soon_is_found_whoever_holds_it() -> None:
    """As soon as the rest is used up in less time than it has been watched for, and not before."""
    (finding,) = observed(leak, limit=int(leak(3500)))

    assert "What holds it is not known" in finding.summary
    assert finding.last_step == 2032
    assert finding.first_step >= 1700 / 2
    assert observed(leak, limit=int(leak(4200))) == []


def test_what_is_known_of_graphs_is_said_of_memory_that_is_used_up_soon() -> None:
    """Though they are kept for a short while only."""
    (finding,) = observed(
        leak, lambda step: HeldParts(Holding.LOSS, 20, step - 300), limit=int(leak(3500))
    )

    assert "The losses are kept" in finding.summary


def test_on_a_device_a_larger_batch_is_told_from_a_leak_by_the_allocations() -> None:
    """It has as many; a leak has one more in each iteration."""
    place, limit = MemoryPlace.DEVICE, int(leak(3500))

    longer = observed(leak, place=place, limit=limit, allocations=lambda _step: 5000)
    kept = observed(leak, place=place, limit=limit, allocations=lambda step: 5000 + step)

    assert longer == []
    assert "of the device" in kept[0].summary


def test_a_limit_that_is_not_known_makes_no_forecast() -> None:
    (finding,) = observed(leak, keeps(Holding.LOSS), limit=0)

    assert "At this rate" not in finding.summary
    assert "iterations_left" not in finding.evidence
