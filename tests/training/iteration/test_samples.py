"""Samples that are asked for by what has become of the iterations before."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from ampwatch.settings import Settings
from ampwatch.training.hooks.events import IterationArrived
from ampwatch.training.iteration.governor import (
    GRADIENTS,
    QUIET_AFTER_ALARM,
    SETTLING,
    TURNS,
    Governor,
)
from ampwatch.training.iteration.samples import Planner
from ampwatch.wire.records import Topic
from tests.training.bench import Bench
from tests.workshop.iterations import iteration

if TYPE_CHECKING:
    from collections.abc import Callable

START = 1100
"""After the one iteration in ``MAX_PERIOD`` that is sampled without being paid for."""


class Broke:
    """A purse out of which nothing can be paid."""

    def __init__(self) -> None:
        self.spent_ns = 0


def sampled_at(
    scale_of: Callable[[int], float], steps: int, *, level: str = "standard", arrives: bool = True
) -> list[int]:
    """Return the iterations after ``START`` in which gradients are sampled, where none can be paid.

    Args:
        scale_of: The scale before an iteration, counted from ``START``.
        steps: How many iterations there are from then on.
        level: How much is measured.
        arrives: Whether samples arrive.
    """
    purse = Broke()
    governor = Governor(Settings.resolve({"level": level}, {}), purse)
    planner = Planner(Bench(parts={"governor": governor}).context)
    sampled = []
    for step in range(START + steps):
        wants = bool(governor.wanted & GRADIENTS)
        if wants and step >= START:
            sampled.append(step - START)
        # One sample before it all, at the scale of then.
        arrived = (wants and arrives and step >= START) or step == START - 1
        made = iteration(
            step=step,
            scale_before=scale_of(max(step - START, -1)),
            loss_scale=scale_of(max(step - START + 1, -1)),
            topics=frozenset({Topic.GRADIENT} if arrived else ()),
        )
        planner.iteration_arrived(IterationArrived(made, is_alarming=False, ends_alarm=False))
        purse.spent_ns += 10**9
        governor.next(0.0001)
    return sampled


def falls(at: int, factor: float) -> Callable[[int], float]:
    return lambda step: 65536.0 * (factor if step >= at else 1.0)


def test_a_far_fall_of_the_scale_has_gradients_sampled_twice_and_then_no_more() -> None:
    """By hand it falls without any alarm; what cannot be paid is not sampled again and again."""
    at = sampled_at(falls(10, 2.0**-10), 500)

    assert len(at) == TURNS.count(GRADIENTS) == 2
    assert all(10 <= step <= 10 + len(TURNS) + 1 for step in at)


@pytest.mark.parametrize(
    "scale_of",
    [
        falls(10, 2.0**-9),
        falls(10, 2.0**10),
        lambda step: math.nan,
        falls(10**6, 1.0),
    ],
    ids=["not far", "a rise", "no scaler", "no fall"],
)
def test_less_than_a_far_fall_asks_for_nothing(scale_of: Callable[[int], float]) -> None:
    """Probes and noisy batches have the scale fall by a little, again and again."""
    assert sampled_at(scale_of, 500) == []


def test_each_fall_asks_once_even_if_no_sample_arrives() -> None:
    """Else a training whose samples are given up would be sampled for ever."""
    assert len(sampled_at(falls(10, 2.0**-20), 900, arrives=False)) == 2


def test_a_second_fall_asks_again_after_a_rest() -> None:
    """Right after the first one it waits."""

    def twice(step: int) -> float:
        return 65536.0 * (2.0**-30 if step >= 40 else 2.0**-15 if step >= 10 else 1.0)

    at = sampled_at(twice, 500)

    assert len(at) == 4
    assert at[1] < 10 + QUIET_AFTER_ALARM <= at[2]


@pytest.mark.parametrize("level", ["off", "light"])
def test_where_nothing_is_measured_a_fall_changes_nothing(level: str) -> None:
    """At these levels no gradients are measured."""
    assert START > SETTLING
    assert sampled_at(falls(10, 2.0**-20), 500, level=level) == []
