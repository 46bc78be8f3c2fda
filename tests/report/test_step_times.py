"""Where the time of a step goes, against sums by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ampwatch.report.step_times import NEWEST_STEPS, WARM_UP_STEPS, Rates, breakdown, rates
from ampwatch.wire.records import StepPhase
from tests.workshop.clocks import SECOND, START
from tests.workshop.records import device_phases, step

if TYPE_CHECKING:
    from ampwatch.wire.records import Phases


def spent(**seconds: float) -> Phases:
    """Phases by their label; 0 for all others. Unit: s."""
    phases = tuple(seconds.get(phase.label, 0.0) for phase in StepPhase)
    assert sum(phases) == pytest.approx(sum(seconds.values()))
    return phases  # type: ignore[return-value] # one of each phase


def test_the_phases_add_up_to_the_mean_step() -> None:
    """One step of four waits, as for one of four workers: a median would know nothing of that."""
    waits = [0.8 if i % 4 == 0 else 0.0 for i in range(100, 140)]
    steps = [step(100 + i, phases=spent(data=w, forward=0.2)) for i, w in enumerate(waits)]

    told = breakdown(steps)

    assert told is not None
    assert told.seconds == pytest.approx(0.4)
    assert [(s.phase, s.seconds, s.share) for s in told.shares] == [
        (StepPhase.DATA, pytest.approx(0.2), pytest.approx(0.5)),
        (StepPhase.FORWARD, pytest.approx(0.2), pytest.approx(0.5)),
    ]
    assert told.source == "by the host's clock, mean of the newest 40 steps"
    assert told.line == "400 ms: 50 % waiting for data, 50 % forward"
    assert told.unseen == []


def test_only_the_newest_steps_count() -> None:
    """What a run has begun with is no news."""
    old = [step(100 + i, phases=spent(data=9.0)) for i in range(50)]
    new = [step(150 + i, phases=spent(data=0.1, forward=0.3)) for i in range(NEWEST_STEPS)]

    told = breakdown([*old, *new])

    assert told is not None
    assert told.seconds == pytest.approx(0.4)


def test_the_opening_is_left_out_once_there_are_other_steps() -> None:
    """A first step that compiles for a minute is not what a step takes; without another it is."""
    opening = [step(i, phases=spent(data=0.1, forward=60.0)) for i in range(WARM_UP_STEPS)]
    one = step(WARM_UP_STEPS, phases=spent(data=0.1, forward=0.3))

    alone, later = breakdown(opening), breakdown([*opening, one])

    assert alone is not None
    assert later is not None
    assert alone.seconds == pytest.approx(60.1)
    assert later.seconds == pytest.approx(0.4)
    assert later.source == "by the host's clock, mean of 1 of the newest 17 steps"


def test_the_clock_of_a_device_goes_before_that_of_the_host() -> None:
    """The host is ahead of it: what it waits for is no loss. Iterations of long ago do not count."""
    steps = [step(100 + i, phases=spent(data=0.9, forward=0.1)) for i in range(40)]
    timed = [device_phases(20, 1, spent(data=5.0))]
    timed += [device_phases(i, 1, spent(data=0.1, forward=0.3)) for i in range(100, 140, 4)]

    told = breakdown(steps, timed)

    assert told is not None
    assert told.on_device
    assert told.phases == pytest.approx(spent(data=0.1, forward=0.3))
    assert told.source == "by the device's clock, mean of 10 of the newest 40 steps"


def test_nothing_is_said_where_nothing_is_known() -> None:
    """Reports of older releases have no phases, and a first step has no duration."""
    assert breakdown([]) is None
    assert breakdown([step(i) for i in range(40)]) is None


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        (spent(forward=1.0, rest=0.5), "No DataLoader was seen"),
        (spent(data=0.1, step=1.0), "Calls of the model were not seen, nor backward"),
        (spent(data=0.1, backward=1.0), "Calls of the model were not seen: forward is part"),
        (spent(data=0.1, forward=1.0, step=1.0), "In some steps neither calls"),
    ],
)
def test_what_was_not_seen_is_said(phases: Phases, words: str) -> None:
    """A phase that is absent must not pass for one that takes no time."""
    told = breakdown([step(50, phases=phases)])

    assert told is not None
    (sentence,) = told.unseen
    assert sentence.startswith(words)


def test_rates_are_differences_of_totals_over_time() -> None:
    """64 samples in each step of a quarter of a second, and nothing said of tokens."""
    steps = [
        step(i, time_ns=START * SECOND + i * SECOND // 4, total_samples=640 + 64 * i)
        for i in range(20)
    ]

    assert rates(steps) == Rates(samples=256.0, tokens=None)
    assert rates(steps).words == ["256 samples"]


def test_a_program_that_begins_to_tell_late_is_not_counted_from_before() -> None:
    """-1 stands for silence, and is no total."""
    steps = [
        step(0, total_tokens=-1),
        step(1, total_tokens=1000),
        step(2, total_tokens=3000),
        step(3, total_tokens=5000),
    ]

    assert rates(steps).tokens == 2000.0
    assert rates(steps[:2]) == Rates()
    assert rates([]) == Rates()
