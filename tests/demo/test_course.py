"""When the demo breaks, and when it is over; the text that it learns."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch

from ampwatch.cli.demo import DESCRIPTION
from ampwatch.demo.corpus import MAX_CHARACTERS, MIN_CHARACTERS, VOCABULARY, Corpus, source_text
from ampwatch.demo.course import FAULTY_STEPS, DemoCourse, Limit, Moment, moments, usual_course


def played(course: DemoCourse, step_seconds: float, at_most: int = 10_000) -> list[Moment]:
    """Play the course with steps that take so long."""
    clock = itertools.chain([0.0], itertools.count(0.0, step_seconds))
    return list(itertools.islice(moments(course, lambda: next(clock)), at_most))


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({}, Limit(seconds=60.0)),
        ({"seconds": 30.0}, Limit(seconds=15.0)),
        ({"seconds": 600.0}, Limit(seconds=60.0)),
        ({"steps": 40}, Limit(steps=20, seconds=60.0)),
        ({"healthy": True}, Limit()),
    ],
)
def test_the_fault_comes_after_a_minute_but_half_way_at_the_latest(
    given: dict[str, float], fault: Limit
) -> None:
    """A short demo breaks as well, a healthy one does not."""
    assert usual_course(**given).fault == fault  # type: ignore[arg-type]


def test_a_broken_training_is_shown_for_a_while_and_ends() -> None:
    """Not at the end of its time, which may be far away."""
    course = DemoCourse(Limit(seconds=math.inf), Limit(steps=7))

    steps = played(course, 1.0)

    assert [m.faulty for m in steps] == [False] * 7 + [True] * FAULTY_STEPS
    assert [m.step for m in steps] == list(range(7 + FAULTY_STEPS))


def test_what_is_said_of_the_time_is_so() -> None:
    """It ends so many steps after the fault, and two minutes from its beginning at the latest."""
    said = f"{FAULTY_STEPS} steps later, after two minutes at the latest"
    page = Path(__file__).parents[2] / "docs" / "tutorial.md"

    assert said in page.read_text(encoding="utf-8")
    assert f"After {FAULTY_STEPS} skipped steps, or two minutes" in DESCRIPTION
    assert len(played(usual_course(), 0.25)) == 240 + FAULTY_STEPS  # 90 s
    assert len(played(usual_course(), 1.0)) == 120


def test_a_healthy_training_goes_on_until_its_time_is_over() -> None:
    """120 seconds of steps of half a second."""
    steps = played(usual_course(healthy=True), 0.5)

    assert len(steps) == 240
    assert not any(m.faulty for m in steps)


CPU = torch.device("cpu")


def test_this_machine_has_a_text() -> None:
    """Real Python, in bounds, all of it ASCII, the same each time."""
    text = source_text()

    assert MIN_CHARACTERS <= len(text) <= MAX_CHARACTERS
    assert max(text) < VOCABULARY
    assert b"import " in text
    assert text == source_text()


def test_the_target_of_a_character_is_the_next_one() -> None:
    """In every passage, and every passage is in the text."""
    text = bytes(i * 7 % VOCABULARY for i in range(1000))

    inputs, targets = Corpus(text, CPU, seed=3).batch(batch=5, context=8)

    assert inputs.shape == targets.shape == (5, 8)
    for before, after in zip(inputs.tolist(), targets.tolist(), strict=True):
        assert before[1:] == after[:-1]
        assert bytes([*before, after[-1]]) in text
