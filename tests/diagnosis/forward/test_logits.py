"""Logits that grow towards saturation are told apart from those that are large, noisy, or level off."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import pytest

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.evidence.logits import LogitsRead
from ampwatch.diagnosis.forward.logits import INTERVALS, SATURATED, LogitGrowth
from ampwatch.wire.records import Severity

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.wire.records import Finding

APART = 8


def _noisy(largest: Callable[[int], float], share: float) -> Callable[[int], float]:
    return lambda step: largest(step) * random.Random(step).uniform(1 - share, 1 + share)


def doubling(step: int) -> float:
    return 2.0 * 2 ** (step / 80)


GROWING: dict[str, Callable[[int], float]] = {
    "doubling": doubling,
    "with noise": _noisy(doubling, 0.2),
    "by equal steps": lambda step: 0.2 * step,
    "after a plateau": lambda step: 20.0 * 2 ** (max(step - 300, 0) / 60),
}

NOT_GROWING: dict[str, Callable[[int], float]] = {
    "small": lambda _step: 6.0,
    "large and level": _noisy(lambda _step: 90.0, 0.2),
    "levelling off": lambda step: 30.0 * (1 - math.exp(-step / 80)),
    "up to a middling level": lambda step: min(doubling(step), 45.0),
    "one batch": lambda step: 400.0 if step == 400 else 15.0,
    "falling": lambda step: 300.0 * 2 ** (-step / 100),
    "slowly": lambda step: 30.0 * 2 ** (step / 5000),
}


def found(
    largest: Callable[[int], float], *, steps: int = 800, is_bound: bool = False
) -> list[Finding]:
    """Return what is told of logits that are read every few iterations."""
    book = FindingBook(lambda _news: None)
    detector = LogitGrowth(book)
    for step in range(0, steps, APART):
        read = LogitsRead(step, "h.0", "_softmax", "bfloat16", largest(step), is_bound)
        detector.observe(read)
        if book.findings:
            break
    return book.findings


@pytest.mark.parametrize("largest", GROWING.values(), ids=GROWING.keys())
def test_growth_is_told_before_a_softmax_saturates(largest: Callable[[int], float]) -> None:
    """Where, since when, and by how much."""
    (finding,) = found(largest)

    assert largest(finding.last_step) < 1.25 * SATURATED
    assert (finding.kind, finding.where) == ("logit_growth", "h.0")
    assert finding.severity is Severity.WARNING
    assert finding.first_step < finding.last_step
    assert finding.evidence["largest"] >= 2 * finding.evidence["largest_before"]


def test_its_numbers_are_those_of_the_growth() -> None:
    """Exact, where the growth is."""
    (finding,) = found(doubling)
    evidence = finding.evidence
    left = 80 * math.log2(SATURATED / evidence["largest"])

    assert evidence["doubles_in_steps"] == pytest.approx(80)
    assert evidence["steps_left"] == pytest.approx(left)
    assert evidence["largest"] == pytest.approx(doubling(finding.last_step - APART))
    assert SATURATED / 2 <= evidence["largest"] < SATURATED / 2 * 2 ** (2 * APART / 80)
    assert evidence["spacing"] == 0.25, (
        "from 32 to 64 a bfloat16 has 5 of its 7 bits before the point"
    )


@pytest.mark.parametrize("largest", NOT_GROWING.values(), ids=NOT_GROWING.keys())
def test_what_does_not_grow_towards_saturation_is_left_alone(
    largest: Callable[[int], float],
) -> None:
    """However large it is."""
    assert found(largest, steps=3000) == []


def test_e_to_the_power_of_its_limit_is_nothing_in_float32() -> None:
    """By the exponential that PyTorch computes."""
    import torch  # noqa: PLC0415 - the diagnosis itself has none

    below, above = torch.tensor([-SATURATED + 0.1, -SATURATED - 0.1]).exp().tolist()
    assert below > 0
    assert above == 0


def test_a_bound_says_that_it_is_one() -> None:
    """In words and in its evidence."""
    (finding,) = found(doubling, is_bound=True)

    assert "at most" in finding.summary
    assert finding.evidence["is_bound"] == 1


def test_numbers_that_are_not_finite_are_no_growth() -> None:
    """Others tell of them."""
    assert found(lambda step: doubling(step) if step % 16 else math.nan) != []
    assert found(lambda _step: math.inf) == []


@pytest.mark.parametrize(
    ("before", "now", "after"), [(2, 4, 64), (8, 16, 32), (10, 30, 8), (30, 30, 64)]
)
def test_the_nearer_the_limit_the_more_often_ops_are_observed(
    before: float, now: float, after: int
) -> None:
    """And not at all before attention was seen, nor of large logits that stay as they are."""
    detector = LogitGrowth(FindingBook(lambda _news: None))
    assert not any(map(detector.asks_for_ops, range(1000)))
    for step, largest in ((0, before), (APART, now)):
        detector.observe(LogitsRead(step, "h.0", "_softmax", "float16", largest, False))  # noqa: FBT003
    asked = [step for step in range(APART, 300) if detector.asks_for_ops(step)]

    assert after in [steps for _, steps in INTERVALS]
    assert asked == list(range(APART + after, 300, after))
