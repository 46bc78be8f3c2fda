"""Logits that grow towards saturation are told apart from those that are large, noisy, or level off."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import pytest

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.detector import Shared
from ampwatch.diagnosis.evidence.ops import LogitsRead
from ampwatch.diagnosis.forward.logits import INTERVALS, PLATEAU, SATURATED, LogitGrowth
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
    "to another plateau": lambda step: 20.0 if step < 400 else 26.0,
    "other data from a step on": _noisy(lambda step: 0.2 if step < 24 else 150.0, 0.1),
    "other data after a plateau": _noisy(lambda step: 20.0 if step < 400 else 150.0, 0.1),
    "a wandering plateau": _noisy(lambda step: 30.0 + 5.0 * math.sin(step / 100), 0.15),
}


def found(
    largest: Callable[[int], float],
    *,
    steps: int = 800,
    is_bound: bool = False,
    reach: Callable[[int], float] | None = None,
) -> list[Finding]:
    """Return what is told of logits that are read every few iterations.

    ``reach`` is what bounds them; as large as they are where it is not given.
    """
    book = FindingBook(lambda _news: None)
    detector = LogitGrowth(Shared(book))
    for step in range(0, steps, APART):
        read = LogitsRead(step, "h.0", "_softmax", "bfloat16", largest(step), is_bound)
        if reach is not None:
            read = read._replace(reach=reach(step))
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
    assert finding.evidence["largest"] >= 1.3 * finding.evidence["largest_before"]


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.15])
def test_growth_after_a_plateau_is_told_while_half_the_way_is_left(noise: float) -> None:
    """Long before the level at which growth from the start is told."""
    (finding,) = found(_noisy(lambda step: 20.0 * 2 ** (max(step - 300, 0) / 30), noise))

    assert 300 - 4 * APART <= finding.first_step <= 300 + 4 * APART
    assert finding.evidence["largest"] < SATURATED / 2
    assert finding.evidence["largest_before"] == pytest.approx(20.0, rel=0.15)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [0.02, 0.05, 0.08, 0.16])
def test_batches_that_differ_are_no_growth_after_a_plateau(spread: float, seed: int) -> None:
    """Whatever a plateau varies by, it takes more than that."""
    of = random.Random(seed)
    largest = [30.0 * math.exp(of.gauss(0.0, spread)) for _ in range(4000)]

    assert found(lambda step: min(largest[step], 80.0), steps=4000) == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("ends_at", "is_bound"), [(40.0, False), (90.0, True)])
def test_growth_that_slows_down_is_left_alone(ends_at: float, seed: int, *, is_bound: bool) -> None:
    """As that of a small healthy GPT, whose batches differ much; a bound is above what it bounds."""
    of = random.Random(seed)
    noise = [math.exp(of.gauss(0.0, 0.12)) for _ in range(2600)]

    def largest(step: int) -> float:
        return (3.0 + (ends_at - 3.0) * (1.0 - math.exp(-step / 1000))) * noise[step]

    assert found(largest, steps=2600, is_bound=is_bound) == []


def test_what_bounds_logits_is_what_has_to_leave_the_plateau() -> None:
    """By whatever factor it is larger: it strays less than the largest logit, and rises first."""

    def rising(step: int) -> float:
        return 20.0 * 2 ** (max(step - 300, 0) / 30)

    of = random.Random(0)
    noisy = [20.0 * math.exp(of.gauss(0.0, 0.2)) for _ in range(800)]
    (early,) = found(noisy.__getitem__, reach=lambda step: 16 * rising(step))

    assert early.last_step < 300 + 6 * APART
    assert found(rising, steps=300 + 30, reach=lambda _step: 320.0) == []


def test_where_growth_began_stays_what_was_said_first() -> None:
    """Later, a plateau lies within the growth."""
    book = FindingBook(lambda _news: None)
    detector = LogitGrowth(Shared(book))
    told = []
    for step in range(0, 600, APART):
        largest = 20.0 * 2 ** (max(step - 300, 0) / 60)
        detector.observe(LogitsRead(step, "h.0", "_softmax", "bfloat16", largest, False))  # noqa: FBT003
        told += [finding.summary for finding in book.findings]

    assert len(set(told)) > 1
    assert len({summary.partition(" to ")[0] for summary in told}) == 1


def test_no_growth_after_a_plateau_is_told_before_there_is_one() -> None:
    """All attention grows in its first steps."""
    steps = APART * PLATEAU

    assert found(lambda step: 10.0 * 2 ** (step / 60), steps=steps) == []


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
    ("before", "now", "every"), [(2, 4, 64), (4, 8, 32), (8, 16, 8), (30, 30, 64)]
)
def test_the_nearer_the_limit_the_more_often_logits_are_looked_at(
    before: float, now: float, every: int
) -> None:
    """And not at all before attention was seen, nor often at large logits that stay as they are."""
    detector = LogitGrowth(Shared(FindingBook(lambda _news: None)))
    assert detector.probe_every == 0
    for step, largest in ((0, before), (APART, now)):
        detector.observe(LogitsRead(step, "h.0", "_softmax", "float16", largest, False))  # noqa: FBT003

    assert every in [steps for _, steps in INTERVALS]
    assert detector.probe_every == every


def test_one_module_that_nears_the_limit_is_enough_to_look_often() -> None:
    """Others beside it may be at rest."""
    detector = LogitGrowth(Shared(FindingBook(lambda _news: None)))
    for step, largest in ((0, 8.0), (APART, 16.0)):
        for where, size in (("h.0", 5.0), ("h.1", largest), ("h.2", 5.0)):
            detector.observe(LogitsRead(step, where, "_softmax", "float16", size, False))  # noqa: FBT003

    assert detector.probe_every == min(steps for _, steps in INTERVALS)
