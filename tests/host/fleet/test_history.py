"""The thinned course of a run, and what watching costs: in the opening, around failures and in steady steps."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ampwatch.diagnosis import escalation
from ampwatch.host.fleet.history import MAX_BUCKETS, Bucket, History
from ampwatch.host.fleet.span_history import HistoryPosition
from ampwatch.host.fleet.watching import AFTERMATH_STEPS, OPENING_STEPS, Phase, WatchingCost
from ampwatch.training.iteration import governor
from ampwatch.wire.records import NO_PHASES, SKIP_CLASSES, SkipClass, StepPhase, StepRecord
from tests.workshop.clocks import SECOND, START
from tests.workshop.records import device_phases, step

numbers = st.one_of(st.floats(0.5, 4.0), st.just(math.nan))
records: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    gap=st.integers(1, 3),
    loss_scale=numbers,
    loss=st.one_of(numbers, st.just(math.inf)),
    num_losses=st.integers(0, 1),
    duration_s=numbers,
    skip_class=st.sampled_from(SkipClass),
    phases=st.one_of(
        st.just(NO_PHASES), st.tuples(*[st.floats(0.0, 4.0, width=32) for _ in StepPhase])
    ),
)


def stretch(drawn: list[dict[str, Any]]) -> list[StepRecord]:
    """Return step records with gaps between some of them."""
    index = 0
    made = []
    for fields in drawn:
        index += fields["gap"]
        made.append(step(index, **{name: v for name, v in fields.items() if name != "gap"}))
    return made


def history_of(made: list[StepRecord], max_buckets: int = MAX_BUCKETS) -> History:
    history = History(max_buckets)
    for record in made:
        history.put(record)
    return history


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other)) or math.isclose(one, other)


def check_bucket(bucket: Bucket, made: list[StepRecord]) -> None:
    """Compare ``bucket`` with a scan over the records of its steps."""
    scales = [r.loss_scale for r in made if not math.isnan(r.loss_scale)]
    losses = [r.loss for r in made if r.num_losses]
    finite = [loss for loss in losses if math.isfinite(loss)]
    durations = [r.duration_s for r in made if not math.isnan(r.duration_s)]

    assert (made[0].step, made[-1].step) == (bucket.first_step, bucket.last_step)
    assert made[-1].time_ns == bucket.time_ns
    assert len(made) == bucket.num_steps
    assert same(min(scales, default=math.nan), bucket.scale_min)
    assert same(max(scales, default=math.nan), bucket.scale_max)
    assert same(made[-1].loss_scale, bucket.scale_last)
    assert same(mean(finite), bucket.loss_mean)
    assert len(losses) - len(finite) == bucket.num_nonfinite_losses
    assert repr(losses[-1] if losses else None) == repr(bucket.loss_last)
    assert same(mean(durations), bucket.duration_mean)
    assert same(max(durations, default=math.nan), bucket.duration_max)
    assert tuple(sum(r.skip_class is c for r in made) for c in SKIP_CLASSES) == bucket.skips
    assert sum(any(r.phases) for r in made) == bucket.num_phased
    for place, seconds in enumerate(bucket.phase_sums):
        assert same(math.fsum(r.phases[place] for r in made), seconds)


@given(st.lists(records, max_size=200), st.integers(1, 16))
def test_buckets_say_what_a_scan_over_all_records_says(
    drawn: list[dict[str, Any]], max_buckets: int
) -> None:
    """However often it was thinned: no step is forgotten, and every bucket is the fold of its steps."""
    made = stretch(drawn)

    history = history_of(made, max_buckets=max_buckets)

    assert len(history.spans) <= max_buckets
    assert sum(bucket.num_steps for bucket in history.spans) == len(made)
    for bucket in history.spans:
        check_bucket(bucket, [r for r in made if bucket.first_step <= r.step <= bucket.last_step])


@pytest.mark.rotating
@given(st.lists(st.lists(records, max_size=8), max_size=20), st.integers(2, 12))
def test_a_reader_that_comes_back_has_the_same_as_one_that_reads_it_all(
    batches: list[list[dict[str, Any]]], max_buckets: int
) -> None:
    """Applying update after update gives the buckets of the history."""
    history = History(max_buckets=max_buckets)
    place: HistoryPosition | None = None
    buckets: dict[int, tuple[int, int]] = {}
    made = iter(stretch([fields for batch in batches for fields in batch]))

    for batch in batches:
        for _ in batch:
            history.put(next(made))
        news = history.since(place)
        if news.everything:
            buckets = {}
        buckets.update((b.first_step, (b.last_step, b.num_steps)) for b in news.spans)
        place = news.place

    expected = {b.first_step: (b.last_step, b.num_steps) for b in history.spans}
    assert expected == buckets


def test_a_step_that_goes_back_does_not_break_the_order() -> None:
    """A damaged ring can say anything; the buckets stay in order and count it."""
    history = history_of([step(5), step(6), step(2)])

    assert [(b.first_step, b.last_step, b.num_steps) for b in history.spans] == [
        (5, 5, 1),
        (6, 6, 2),
    ]


def test_what_a_device_has_timed_stands_with_the_step_in_which_it_came() -> None:
    """However often the history is thinned, nothing of it is lost, and nothing is of the host."""
    history = History(max_buckets=8)
    sent = 0.0
    for i in range(100):
        history.put(step(i))
        if i % 4 == 3:
            seconds = 0.25 * i
            sent += seconds
            phases = (seconds, *NO_PHASES[1:])
            history.put_device(device_phases(i - 2, 1, phases))  # type: ignore[arg-type] # ten

    assert sum(b.num_device_phased for b in history.spans) == 25
    assert sum(b.device_phase_sums[StepPhase.DATA] for b in history.spans) == sent
    assert history.spans[0].device_phase_sums[0] == 0.25 * (3 + 7 + 11 + 15)
    assert all(b.phase_sums == NO_PHASES for b in history.spans)


def test_a_device_that_speaks_before_the_first_step_is_not_heard() -> None:
    """There is no step to put it to."""
    history = History()
    history.put_device(device_phases(0, 1, (1.0, *NO_PHASES[1:])))  # type: ignore[arg-type]

    assert history.spans == []


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
    assert AFTERMATH_STEPS == 2 * escalation.MAX_TRACES
