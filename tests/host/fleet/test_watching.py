"""What watching costs, in the opening, around failures and in steady steps."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from ampwatch.host.fleet.watching import AFTERMATH_STEPS, OPENING_STEPS, Phase, WatchingCost
from ampwatch.training.iteration import governor
from ampwatch.wire.records import SkipClass, StepRecord
from tests.workshop.clocks import SECOND, START
from tests.workshop.records import step

STEADY, OPENING, FAILURE = 10_000_000, 200_000_000, 50_000_000
"""Overhead of a step of one second, by what it is part of. Unit: ns."""


def cost_of(records: list[StepRecord]) -> WatchingCost:
    cost = WatchingCost(START * SECOND)
    for record in records:
        cost.put(record)
    return cost


def run_of(
    steps: int, failures: frozenset[int] = frozenset(), **failing: object
) -> list[StepRecord]:
    """A run whose steps cost what those of their phase do."""
    spent, records, failed_at = 0, list[StepRecord](), -math.inf
    for i in range(steps):
        failed_at = i if i in failures else failed_at
        near = i - failed_at <= AFTERMATH_STEPS
        spent += OPENING if i < OPENING_STEPS else FAILURE if near else STEADY
        changes = failing if i in failures else {}
        records.append(step(i, overhead_ns=spent, **changes))
    return records


def shares(cost: WatchingCost) -> dict[Phase, float | None]:
    return {phase: cost.share(phase) for phase in Phase}


def test_a_calm_run_has_an_opening_and_steady_steps() -> None:
    """And nothing is said of failures that it did not have."""
    told = shares(cost_of(run_of(200)))

    assert told == {Phase.OPENING: 0.2, Phase.FAILURE: None, Phase.STEADY: 0.01}


def test_a_run_that_goes_on_from_a_checkpoint_has_its_opening_there() -> None:
    """Its first step is not the first of all: it is the one of which nobody knows how long it took."""
    records = [replace(record, step=record.step + 5000) for record in run_of(200)]
    cost = cost_of(records)

    assert shares(cost) == shares(cost_of(run_of(200)))
    assert cost.steady_from == 5000 + OPENING_STEPS


@pytest.mark.parametrize("skip", [SkipClass.UNPROVOKED, SkipClass.STORM])
def test_a_skipped_step_and_those_after_it_are_apart_from_steady_ones(skip: SkipClass) -> None:
    """What failed is looked at closely for some steps."""
    told = shares(cost_of(run_of(400, frozenset({100, 110, 300}), skip_class=skip)))

    assert told[Phase.FAILURE] == pytest.approx(0.05)
    assert told[Phase.STEADY] == pytest.approx(0.01)


@pytest.mark.parametrize("skip", [SkipClass.NONE, SkipClass.PROBE, SkipClass.CALIBRATING])
def test_a_skip_that_is_expected_is_no_failure(skip: SkipClass) -> None:
    """A scaler probes every few thousand steps."""
    records = [step(i, overhead_ns=i * STEADY, skip_class=skip) for i in range(100)]

    assert cost_of(records).share(Phase.FAILURE) is None


def test_a_loss_that_is_not_finite_is_a_failure_also_without_a_scaler() -> None:
    """bfloat16 skips nothing."""
    records = run_of(100)
    records[50:] = [
        step(i, overhead_ns=records[i].overhead_ns, total_nonfinite_losses=1)
        for i in range(50, 100)
    ]

    cost = cost_of(records)

    assert cost.share(Phase.FAILURE) is not None
    assert cost.share(Phase.STEADY) == pytest.approx(0.01)


def test_of_a_run_that_was_read_late_only_what_was_seen_is_told() -> None:
    """The total so far may be of anything."""
    records = run_of(200)

    assert shares(cost_of(records[150:151])) == dict.fromkeys(Phase)
    assert shares(cost_of(records[150:])) == {
        Phase.OPENING: None,
        Phase.FAILURE: None,
        Phase.STEADY: pytest.approx(0.01),
    }


def test_a_clock_that_was_set_back_makes_no_share_negative() -> None:
    """A damaged ring may hold such a step."""
    records = run_of(100)
    back = step(100, time_ns=records[50].time_ns, overhead_ns=0)

    told = shares(cost_of([*records, back]))

    assert told[Phase.STEADY] == pytest.approx(0.01)


def test_the_opening_is_that_of_the_training_process() -> None:
    """The two halves share no code, so the number stands in both."""
    assert OPENING_STEPS == governor.OPENING
    assert AFTERMATH_STEPS >= governor.ALARMED
