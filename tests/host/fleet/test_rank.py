"""What the records of one process add up to, with its histograms, and the hold that lets a scrape see what was before it."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampwatch.host.fleet import RankView
from ampwatch.host.fleet.histogram import HOLD_SECONDS, STEP_DURATION_BOUNDS, Histogram, Peak
from ampwatch.host.fleet.rank import DIED, FIRST_READ_SECONDS
from ampwatch.numerics.formats import FORMATS
from ampwatch.settings import Settings
from ampwatch.state.rank import MAX_FACTS, MAX_SENSORS
from ampwatch.wire.records import OTHER_OPTIMIZERS, FactsRecord, Record, RunIdentity, RunState
from tests.workshop.clocks import SECOND, START, Clock
from tests.workshop.records import (
    IDENTITY,
    checksum,
    end,
    failure,
    finding,
    histogram,
    optimizer,
    ranges,
    sampling,
    skipped_step,
    step,
)


def view(*records: Record, clock: Clock | None = None, who: RunIdentity = IDENTITY) -> RankView:
    made = RankView(who, clock=clock or Clock(START + 10), settings=Settings())
    for record in records:
        made.apply(record)
    return made


def test_the_loss_is_that_of_the_newest_step_that_had_one() -> None:
    """A step without a loss keeps the loss of the step before; a loss that is NaN is one."""
    assert view(step(0, loss=3.0), step(1, num_losses=0, loss=9.0)).loss == 3.0
    assert math.isnan(view(step(0, loss=math.nan)).loss or 0.0)


def test_a_dip_between_two_looks_is_held_and_later_let_go() -> None:
    """The smallest scale and the longest run of skips are seen for a minute at least."""
    clock = Clock(START + 4)
    rank = view(
        step(0), skipped_step(1, 0.5, consecutive_skips=7), step(2, loss_scale=8.0), clock=clock
    )

    assert (rank.loss_scale, rank.loss_scale_min, rank.consecutive_skips_max) == (8.0, 0.5, 7)
    clock.now += 55
    assert (rank.loss_scale_min, rank.consecutive_skips_max) == (0.5, 7)
    clock.now += 120
    assert (rank.loss_scale_min, rank.consecutive_skips_max) == (8.0, 0)


def test_records_read_late_hold_nothing() -> None:
    """A dip of an hour ago, read just now, is no recent dip."""
    rank = view(step(0, loss_scale=0.5), step(1), clock=Clock(START + 3600))

    assert rank.loss_scale_min == 65536.0


def test_optimizers_beyond_the_limit_are_one() -> None:
    """Whatever index a ring gives, there are nine optimizers at most."""
    rank = view(*(optimizer(index, total_steps=index) for index in range(256)))

    assert sorted(rank.optimizers) == [*range(8), OTHER_OPTIMIZERS]
    assert rank.optimizers[3].total_steps == 3


def test_facts_add_up_and_the_newest_value_holds() -> None:
    """A change of one fact leaves the others; their number is bounded."""
    rank = view(
        FactsRecord({"torch": "2.6", "device": "cuda"}),
        FactsRecord({"device": "cpu"}),
        FactsRecord({f"fact{i}": "x" for i in range(100)}),
        FactsRecord({"torch": "2.7"}),
    )

    assert (rank.facts["torch"], rank.facts["device"]) == ("2.7", "cpu")
    assert len(rank.facts) == MAX_FACTS


def test_findings_carry_the_time_of_the_step_they_came_with() -> None:
    """Records of findings have no time of their own; before the first step it is that of the start."""
    rank = view(finding("api_error"), step(4), finding("scale_collapse", last_step=5))

    seen = {s.kind: t.last_seen_ns for s, t in rank.finding_totals.sums.by_sort.items()}

    assert seen == {"api_error": START * SECOND, "scale_collapse": (START + 5) * SECOND}
    assert list(rank.findings) == ["api_error@optimizer:0", "scale_collapse@optimizer:0"]


def test_a_finding_read_late_carries_the_time_of_the_step_it_was_last_seen_in() -> None:
    """A daemon that comes late meets old findings repeated among new steps."""
    late = finding(first_step=1, last_step=3)
    early = finding("scale_runaway", first_step=0, last_step=1)
    rank = view(*(step(i) for i in range(2, 9)), late, early)

    seen = {f.kind: rank.finding_totals.last_seen_ns(f.key) for f in rank.findings.values()}

    assert seen == {
        "scale_collapse": (START + 4) * SECOND,
        "scale_runaway": (START + 3) * SECOND,  # by the oldest step that was read
    }


def test_steps_of_before_the_first_look_are_not_in_the_histogram() -> None:
    """They would all seem to happen now; what the page shows of them is the same as ever."""
    clock = Clock(START + 100)
    records = [step(i) for i in range(1, 101)]
    rank = view(*records, clock=clock)
    recent = sum(r.time_ns >= (clock.now - FIRST_READ_SECONDS) * SECOND for r in records)
    assert 0 < recent < 20
    assert sum(rank.durations.counts) == recent

    clock.now += 1000
    rank.apply(step(101))

    assert sum(rank.durations.counts) == recent + 1
    assert sum(bucket.num_steps for bucket in rank.history.spans) == 101


def test_ranges_are_folded_with_what_is_known_about_autocast() -> None:
    """The facts name the dtypes, the records the values, the clock says what is still held."""
    clock = Clock(START + 10)
    facts = FactsRecord({"autocast_dtype": "bfloat16"})
    rank = view(facts, ranges(exponents=histogram(3, 1)), sampling(interval=7), clock=clock)

    assert rank.ranges.autocast is FORMATS["bfloat16"]
    assert rank.totals == sampling(interval=7)
    assert rank.scaled_amax_max == 8.0

    rank.apply(ranges(exponents=histogram(1, 1)))
    assert rank.scaled_amax_max == 8.0
    clock.now += 1000
    assert rank.scaled_amax_max == 2.0


@pytest.mark.parametrize(
    ("records", "alive", "state", "reason"),
    [
        ([step(0)], True, RunState.RUNNING, ""),
        ([step(0), end()], True, RunState.FINISHED, ""),
        ([step(0), end()], False, RunState.FINISHED, ""),
        ([end(RunState.FAILED, "KeyError: 3")], True, RunState.FAILED, "KeyError: 3"),
        ([step(0)], False, RunState.FAILED, DIED),
    ],
)
def test_the_end_is_what_the_run_said_else_what_the_kernel_says(
    *, records: list[Record], alive: bool, state: RunState, reason: str
) -> None:
    """An end record holds; a process that is gone without one has failed."""
    rank = view(*records)
    rank.observe(alive=alive, lost=0, dropped=0)

    assert (state, reason) == (rank.state, rank.end_reason)


@pytest.mark.parametrize(
    ("silence", "usual", "state"),
    [
        (119, 0.1, RunState.RUNNING),
        (121, 0.1, RunState.STALE),
        (299, 30.0, RunState.RUNNING),
        (301, 30.0, RunState.STALE),
    ],
)
def test_a_living_rank_is_stale_after_a_long_silence(
    silence: float, usual: float, state: RunState
) -> None:
    """Longer than the setting, and longer than ten of its usual steps; one slow step is not usual."""
    steps = [step(i, duration_s=usual) for i in range(1, 9)]
    clock = Clock(START + 11 + silence)

    rank = view(*steps, step(10, duration_s=5000.0), clock=clock)

    assert state is rank.state


def test_a_rank_that_never_steps_becomes_stale() -> None:
    """Silence counts from the start."""
    clock = Clock(START + 121)

    assert view(clock=clock).state is RunState.STALE
    assert view(end(time_ns=START * SECOND), clock=clock).state is RunState.FINISHED


def test_the_time_of_the_end_is_when_it_was_noticed() -> None:
    """It does not move any more, unless the rank turns out to live."""
    clock = Clock(START + 10)
    rank = view(step(0), clock=clock)
    for alive, now in ((True, 10), (False, 20), (False, 30)):
        clock.now = START + now
        rank.observe(alive=alive, lost=1, dropped=2)

    assert rank.ended_at == START + 20
    assert (rank.records_lost, rank.ring_dropped) == (1, 2)

    rank.observe(alive=True, lost=1, dropped=2)
    assert rank.ended_at is None


@pytest.mark.parametrize(("newest", "interval"), [(12, 5), (15, 5), (16, 6), (100, 90)])
def test_a_sample_that_is_overdue_makes_the_interval_longer(newest: int, interval: int) -> None:
    """Plans are no news once they have not happened."""
    rank = view(sampling(step=10, interval=5), step(newest))

    assert rank.sampling_interval == interval


def test_the_interval_is_not_known_before_a_sample_and_0_when_there_are_none() -> None:
    """Light never samples; whoever samples no more says so."""
    assert view(step(3)).sampling_interval is None
    assert view(sampling(interval=7)).sampling_interval == 7
    assert view(sampling(interval=0), step(3)).sampling_interval == 0


def test_the_errors_of_a_sensor_are_those_of_its_newest_record() -> None:
    """They are cumulative, and a ring repeats them."""
    rank = view(
        failure("births"),
        failure("clipping"),
        failure("births", errors=3),
        failure("births", errors=3),
    )

    assert {n: of.errors for n, of in rank.failures.items()} == {"births": 3, "clipping": 1}


def test_a_hostile_ring_cannot_make_sensors_without_end() -> None:
    """Each would be a series; those that are known go on."""
    rank = view(*(failure(f"s{i}") for i in range(2 * MAX_SENSORS)), failure("s0", errors=9))

    assert len(rank.failures) == MAX_SENSORS
    assert rank.failures["s0"].errors == 9


@pytest.mark.parametrize("other_s", [0.5, 0.4, 0.26])
def test_ranks_of_one_pace_keep_the_same_checksum_for_several_scrapes(other_s: float) -> None:
    """Each for four minutes or more, whatever each of them takes a step for exactly; and part 0."""
    ranks = [view(), view()]
    kept: list[list[int]] = [[], []]
    for number in range(0, 12_000, 257):
        for rank, seconds, steps in zip(ranks, (0.5, other_s), kept, strict=True):
            rank.apply(step(number, duration_s=seconds))
            rank.apply(checksum(number))
            rank.apply(checksum(number + 128, part=1))
            rank.apply(checksum(number + 128, then=checksum().first))  # which has not moved
            assert rank.checksum is not None
            steps.append(rank.checksum.step)

    shared = sum(a == b for a, b in zip(*kept, strict=True))
    assert shared >= len(kept[0]) / 2
    assert all(number % 257 == 0 for number in kept[0])
    assert all(b - a >= 240 / 0.5 - 257 for a, b in pairwise(kept[0]) if a != b)


@given(st.lists(st.floats(0, 1000)))
def test_every_bound_counts_what_is_not_above_it(values: list[float]) -> None:
    """The cumulative counts are those of a scan over all values, a bound itself included."""
    values = [*values, *STEP_DURATION_BOUNDS]
    histogram = Histogram(STEP_DURATION_BOUNDS)
    for value in values:
        histogram.observe(value)

    expected = [
        (bound, sum(value <= bound for value in values))
        for bound in (*STEP_DURATION_BOUNDS, math.inf)
    ]

    assert expected == histogram.distribution().buckets
    assert histogram.sum is not None
    assert math.isclose(sum(values), histogram.sum)


def test_what_is_no_duration_is_not_counted() -> None:
    """NaN stands for a duration that is not known; negative and infinite ones cannot be."""
    histogram = Histogram(STEP_DURATION_BOUNDS)
    for value in (math.nan, math.inf, -1.0):
        histogram.observe(value)

    assert sum(histogram.counts) == 0
    assert histogram.sum == 0.0


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(-9, 9)), min_size=1), st.integers(0, 200)
)
def test_a_peak_holds_all_of_the_last_window_and_nothing_older_than_two(
    puts: list[tuple[int, int]], wait: int
) -> None:
    """Whatever was put in is seen for a window, and forgotten after two."""
    puts = sorted(puts, key=lambda put: put[0])
    peak = Peak(max)
    for seconds, value in puts:
        peak.put(value, seconds * SECOND)
    newest_time, newest = puts[-1]
    now = newest_time + wait

    held = peak.read(newest, now * SECOND)

    at_least = [v for t, v in puts if now - t < HOLD_SECONDS]
    at_most = [v for t, v in puts if now - t < 2 * HOLD_SECONDS]
    assert max([newest, *at_least]) <= held <= max([newest, *at_most])


def test_a_value_from_before_the_window_counts_as_the_newest() -> None:
    """A clock that was set back loses nothing."""
    peak = Peak(max)
    peak.put(1, 500 * SECOND)
    peak.put(7, 10 * SECOND)

    assert peak.read(1, 500 * SECOND) == 7
