"""When what is measured, against a training whose costs are known."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from ampwatch.settings import Settings
from ampwatch.training.iteration.governor import (
    ALARMED,
    DEEP_BUDGET,
    DEEP_OPENING,
    FIRST,
    FORWARD,
    MANY,
    MAX_ADVANCE,
    MAX_PERIOD,
    OF_OPS,
    OPENING,
    OPS,
    PROBE,
    PROBE_SHARE,
    QUIET_AFTER_ALARM,
    SETTLING,
    SKIPS_MEASURED,
    STATE,
    TURNS,
    WORST_SHARE,
    Governor,
    Observation,
    Wanted,
)
from ampwatch.wire.records import Topic


class Training:
    """Iterations of a given length whose samples cost a given time; no clock is involved.

    ``drag_s``: how much longer PyTorch itself takes where each op is seen. ``costs``: what parts of
    samples cost, where that is not the same for all. ``noise``: share by which iterations vary.
    ``probe_every``: iterations of which one is asked for as a look. ``together``: whether quiet iterations are
    accounted for when they are over.
    """

    def __init__(
        self,
        step_s: float = 0.1,
        cost_s: float = 0.005,
        always_s: float = 0.0,
        drag_s: float = 0.0,
        costs: dict[Topic | Observation, float] | None = None,
        noise: float = 0.0,
        probe_every: int = 0,
        together: bool = False,  # noqa: FBT001, FBT002 - by name
        **settings: object,
    ) -> None:
        self.step_s, self.cost_s, self.always_s = step_s, cost_s, always_s
        self.drag_s, self.costs, self.noise = drag_s, costs, noise
        self.probe_every, self.together = probe_every, together
        self.waiting: list[float] = []
        self.rng = random.Random(0)
        self.extra_s: list[float] = []
        self.spent_ns = 0
        self.governor = Governor(Settings.resolve(dict(settings), {}), self)
        self.samples: list[tuple[int, Wanted, tuple[int, int]]] = []
        self.dragged_s = 0.0
        self.seconds = 0.0

    def run(self, iterations: int) -> Training:
        for _ in range(iterations):
            governor, cost_s = self.governor, self.always_s
            if governor.wanted:
                self.samples.append((governor.step, governor.wanted, governor.part))
                cost_s += self.price_s / governor.part[1]
            drag_s = self.drag_s if governor.wanted & OF_OPS else 0.0
            self.dragged_s += drag_s
            self.extra_s.append(cost_s + drag_s)
            self.spent_ns += int(1e9 * cost_s)
            step_s = self.step_s * (1.0 + self.rng.expovariate(1.0) * self.noise)
            self.seconds += step_s + cost_s + drag_s
            # The first has no duration: nobody knows when it began.
            known = math.nan if governor.step == 0 else step_s + cost_s + drag_s
            self.waiting.append(known)
            if not self.together or len(self.waiting) >= governor.quiet:
                governor.next(sum(self.waiting), self.probe_every, len(self.waiting))
                self.waiting.clear()
        return self

    @property
    def price_s(self) -> float:
        """What all of the sample costs that the open iteration takes."""
        if self.costs is None:
            return self.cost_s
        return sum(self.costs.get(topic, 0.0) for topic in self.governor.wanted)

    @property
    def sampled(self) -> list[int]:
        return [step for step, _, _ in self.samples]


@pytest.mark.parametrize("probe_every", [0, 48])
@pytest.mark.parametrize("every", [0, 20])
@pytest.mark.parametrize(("step_s", "always_s"), [(0.1, 0.0), (0.001, 5e-6), (0.03, 2e-4)])
def test_quiet_iterations_may_be_accounted_for_together(
    step_s: float, always_s: float, every: int, probe_every: int
) -> None:
    """The same iterations are sampled, but for some while the training settles."""
    given: Any = {"always_s": always_s, "probe_every": probe_every, "sample_every": every}
    one, many = (Training(step_s, together=t, **given).run(4000) for t in (False, True))

    assert abs(len(one.samples) - len(many.samples)) <= 1
    assert one.sampled[-30:] == many.sampled[-30:]


@pytest.mark.parametrize("level", ["standard", "deep"])
@pytest.mark.parametrize("parameters", [MANY, 20_000])
def test_the_first_iteration_of_a_large_model_is_looked_at_in_part(
    parameters: int, level: str
) -> None:
    """No op is counted or followed in it, nor in the next ones where its parameters make these long; at deep, all are."""
    training = Training(step_s=0.3, level=level)
    training.governor.size(parameters)
    follows = [training.governor.is_short]
    for _ in range(4):
        training.run(1)
        follows.append(training.governor.is_short)
    training.run(SETTLING - 5)

    is_whole = parameters <= MANY or level == "deep"
    (_, wanted, (part, parts)), *later = training.samples
    assert (wanted >= OPS, part) == (is_whole, 0)
    assert wanted - OPS == FIRST
    assert parts == (1 if is_whole else math.ceil(parameters / MANY))
    if level == "standard":
        assert follows == [is_whole] * 2 + [False] * 3
        assert any(turn == OPS for _, turn, _ in later) == is_whole


@pytest.mark.parametrize("budget", [0.002, 0.01, 0.1])
@pytest.mark.parametrize("cost_s", [0.0005, 0.005, 0.05])
def test_what_ampwatch_costs_stays_within_the_budget(budget: float, cost_s: float) -> None:
    """Counted after what is taken in advance, to within one sample."""
    training = Training(cost_s=cost_s, overhead_budget=budget).run(SETTLING)
    spent, seconds = training.spent_ns / 1e9, training.seconds

    training.run(5000)

    spent, seconds = training.spent_ns / 1e9 - spent, training.seconds - seconds
    assert spent <= budget * seconds + cost_s
    # A period is up to four times as long as it had to be, and the advance is paid back.
    paid_back = MAX_ADVANCE * budget * training.step_s
    assert spent >= 0.2 * min(budget * seconds, 5000 * cost_s) - cost_s - paid_back


def test_the_always_on_sensors_are_paid_from_the_same_budget() -> None:
    """The more they take, the less is left for samples."""
    alone = Training(overhead_budget=0.01).run(3000)
    beside = Training(overhead_budget=0.01, always_s=0.0005).run(3000)

    late = [sum(step >= SETTLING for step in training.sampled) for training in (alone, beside)]
    assert late[1] < 0.7 * late[0]


def test_always_on_sensors_leave_samples_a_quarter_of_the_budget() -> None:
    """Also where they take twice as much as all of it: a sample of 5 ms is earned in 100 steps of 20 ms."""
    training = Training(step_s=0.02, cost_s=0.005, always_s=0.0004).run(5000)

    late = [step for step in training.sampled if step >= 1000]
    assert 4000 / 256 <= len(late) <= 4000 / 100


def test_a_training_that_cannot_pay_is_sampled_now_and_then_all_the_same() -> None:
    """Steps shorter than our own work must not go unseen for good."""
    training = Training(step_s=0.0001, cost_s=0.01, always_s=0.0001).run(5 * MAX_PERIOD)

    late = [step for step in training.sampled if step >= SETTLING]
    assert len(late) >= 3
    assert all(b - a <= 2 * MAX_PERIOD for a, b in pairwise(late))


@pytest.mark.parametrize("ranks", [2, 16])
def test_the_ranks_of_a_job_sample_in_the_same_steps(ranks: int) -> None:
    """Ranks wait for one another: apart, each would delay all the others."""
    rng = random.Random(0)
    trainings = [Training(cost_s=0.01 * rng.uniform(0.7, 1.4)) for _ in range(ranks)]
    for training in trainings:
        training.run(6000)

    for begin, end in ((0, SETTLING), (SETTLING, 6000)):
        sampled = [{step for step in t.sampled if begin <= step < end} for t in trainings]
        delayed = set.union(*sampled)
        assert len(delayed) <= 2.5 * max(map(len, sampled))


def test_the_time_of_a_device_is_charged_when_it_is_known() -> None:
    """Device time is paid like host time, and a sample that weighs too much on a step is spread."""
    late, free = Training(cost_s=0.0), Training(cost_s=0.0)
    for _ in range(3000):
        step, samples = late.governor.step, len(late.samples)
        late.run(1)
        free.run(1)
        if step >= SETTLING and len(late.samples) > samples:
            _, wanted, (_, parts) = late.samples[-1]
            late.governor.charge(wanted, parts, int(0.05e9 / parts))

    assert len(late.samples) < 0.2 * len(free.samples)
    parts = {part[1] for step, wanted, part in late.samples if step > 2000 and wanted == FORWARD}
    assert min(parts) >= 4


# Costs as shares of a step: of small and large models, and of one of many small ops.
EVEN = dict.fromkeys((*Topic, Observation.OPS), 0.05)
LARGE = {**dict.fromkeys(Topic, 0.03), Observation.OPS: 0.4}
MANY_OPS = {**dict.fromkeys(Topic, 0.25), Topic.BUFFER: 0.0, Observation.OPS: 1.5}
HEAVY = {**dict.fromkeys(Topic, 0.6), Topic.BUFFER: 0.0, Observation.OPS: 0.5}


@pytest.mark.rotating
@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("always", [0.0, 0.01])
@pytest.mark.parametrize("step_s", [0.01, 0.05, 1.0])
@pytest.mark.parametrize("shares", [EVEN, LARGE, MANY_OPS, HEAVY])
def test_no_stretch_of_the_beginning_is_much_slower_than_the_rest(
    shares: dict[Topic | Observation, float], step_s: float, always: float, noise: float
) -> None:
    """Any 50 iterations cost under 10 %, the first 500 under 3 %, and each topic is seen in them."""
    costs = {topic: share * step_s for topic, share in shares.items()}
    drag_s = 0.5 * costs[Observation.OPS]
    training = Training(step_s, always_s=always * step_s, drag_s=drag_s, costs=costs, noise=noise)

    training.run(500)

    shares_of_time = [extra / step_s for extra in training.extra_s]
    assert max(sum(shares_of_time[i : i + 50]) for i in range(450)) < 0.10 * 50
    assert sum(shares_of_time) < 0.03 * 500
    assert {topic for _, wanted, _ in training.samples for topic in wanted} == set(shares)


def test_a_beginning_that_nobody_notices_is_sampled_in_each_iteration() -> None:
    """Where iterations are short: one topic each, whatever that costs, and it is not owed."""
    training = Training(step_s=0.001, cost_s=0.002).run(SETTLING)

    assert training.sampled[:OPENING] == list(range(OPENING))
    assert len(training.sampled) < 2 * OPENING


@pytest.mark.parametrize(("cost_s", "is_followed"), [(0.9, True), (1.1, False)])
def test_a_first_iteration_that_costs_more_than_a_second_is_not_followed_by_others(
    cost_s: float, *, is_followed: bool
) -> None:
    """How long an iteration takes is not known by then; three would be as dear."""
    training = Training(step_s=1.0, cost_s=cost_s)
    first = training.governor.is_short
    training.run(1)

    assert (first, training.governor.is_short) == (True, is_followed)


def test_an_iteration_that_takes_long_for_a_reason_of_its_own_is_no_cost() -> None:
    """An evaluation within one that is sampled must not keep later ones from being sampled."""
    free, other = Training(cost_s=0.001), Training(cost_s=0.001)
    for training in (free, other):
        training.run(2 * SETTLING)
        while not training.governor.wanted:
            training.run(1)
    other.step_s = 60.0
    other.run(1)
    other.step_s = free.step_s
    free.run(1)
    for training in (free, other):
        training.samples.clear()
        training.run(1000)

    assert len(other.samples) > 0.8 * len(free.samples)


def test_what_samples_take_besides_the_account_is_known() -> None:
    """The account and that together are what was added to the training, also where steps vary."""
    costs = dict.fromkeys((*Topic, Observation.OPS), 0.004)
    training = Training(costs=costs, drag_s=0.008, noise=0.02).run(20_000)

    known = training.spent_ns + training.governor.hidden_ns
    assert known / 1e9 == pytest.approx(sum(training.extra_s), rel=0.15)
    assert training.governor.hidden_ns / 1e9 > 0.9 * training.dragged_s


def test_each_topic_is_sampled_in_turn_and_gradients_twice_as_often() -> None:
    """Nothing that could be measured is left out for good."""
    training = Training(cost_s=0.0).run(500)

    counts = Counter(topic for _, wanted, _ in training.samples for topic in wanted)
    assert set(counts) == {*Topic, Observation.OPS}
    assert counts[Topic.GRADIENT] == pytest.approx(2 * counts[Topic.ACTIVATION], rel=0.05)
    for topic in (Topic.WEIGHT, Topic.UPDATE, Topic.BUFFER, Observation.OPS):
        assert counts[topic] == pytest.approx(counts[Topic.ACTIVATION_GRADIENT], rel=0.05)


def test_ops_are_not_looked_at_where_windows_are_to_do() -> None:
    """Not as long as all is well."""
    training = Training(cost_s=0.0, op_census="window").run(500)

    assert not any(Observation.OPS in wanted for _, wanted, _ in training.samples)


def test_the_first_iteration_measures_gradients_state_and_ops() -> None:
    """A training that is broken from the start may live for two or three steps."""
    assert Training().run(1).samples[0][1] == FIRST | {Observation.OPS}


def test_sample_every_fixes_the_interval() -> None:
    """Whatever it costs, also in the opening."""
    training = Training(cost_s=0.05, sample_every=7).run(100)

    assert training.sampled == [0, *range(7, 100, 7)]
    assert training.governor.interval == 7


def test_a_sample_that_weighs_on_its_step_is_spread_over_several() -> None:
    """Each part takes its turn, and the worst step stays near the limit."""
    training = Training(cost_s=0.1, overhead_budget=0.5).run(1000)

    late = [(wanted, part) for step, wanted, part in training.samples if step > 800]
    forward = [part for wanted, part in late if wanted == {Topic.ACTIVATION}]
    parts = forward[0][1]
    assert training.cost_s / parts <= 1.1 * WORST_SHARE * training.step_s
    assert {part for part, _ in forward} == set(range(parts))
    assert all(part == (0, 1) for wanted, part in late if wanted == {Topic.GRADIENT})


def test_deep_counts_ops_beside_a_topic_in_each_iteration_of_its_opening() -> None:
    """Somebody is looking for something: also in a fit of a program that has been seen before."""
    training = Training(level="deep")
    training.governor.shorten_opening(OPENING)
    training.run(DEEP_OPENING)

    turns = [wanted for _, wanted, _ in training.samples]
    assert turns[0] == FIRST | OPS
    assert all(wanted >= OPS for wanted in turns)
    assert training.sampled == list(range(DEEP_OPENING))
    assert set().union(*turns) >= set(Topic)


@pytest.mark.parametrize("always_s", [0.0, 0.02, 0.2])
def test_deep_pays_for_samples_and_not_for_following(always_s: float) -> None:
    """Following each op is what it is there for; samples have a share of the step, however dear it is."""
    training = Training(level="deep", always_s=always_s, cost_s=0.03).run(DEEP_OPENING)
    training.samples.clear()
    training.run(2000)

    step_s = training.step_s + always_s
    spent_s = sum(training.cost_s / parts for _, _, (_, parts) in training.samples)
    assert 0.2 * DEEP_BUDGET < spent_s / (2000 * step_s) <= DEEP_BUDGET
    assert training.governor.follows_ops


@pytest.mark.parametrize("level", ["light", "off"])
def test_light_measures_nothing(level: str) -> None:
    """Scaler and steps only, not even at skips."""
    training = Training(level=level).run(100)

    assert training.samples == []
    assert not training.governor.observes_skips


def test_an_alarm_has_the_next_iterations_looked_at_state_first() -> None:
    """Then it rests, so that a storm of skips is not a storm of samples."""
    training = Training(cost_s=0.5, overhead_budget=0.001).run(SETTLING + 2 * MAX_PERIOD + 200)
    before = len(training.samples)

    for _ in range(QUIET_AFTER_ALARM):
        training.governor.alarm()
        training.run(1)

    after = training.samples[before:]
    assert len(after) in (ALARMED, ALARMED + 1)
    assert after[0][1] == STATE


def test_the_first_failure_after_a_calm_is_sampled_on_the_spot() -> None:
    """And not every one of a row."""
    training = Training().run(5)
    first = training.governor.takes_first_check()
    training.run(1)
    second = training.governor.takes_first_check()
    training.run(100)

    assert (first, second, training.governor.takes_first_check()) == (True, False, True)


def test_a_storm_of_skips_is_not_measured_step_by_step_for_ever() -> None:
    """The first of a streak are, in the opening all; after a calm it begins anew."""
    training = Training(cost_s=0.5, overhead_budget=0.001)
    opening = []
    for _ in range(OPENING):
        opening.append(training.governor.takes_skip())
        training.run(1)
    training.run(QUIET_AFTER_ALARM + 10)
    storm = []
    for _ in range(100):
        storm.append(training.governor.takes_skip())
        training.spent_ns += int(1e9 * training.cost_s * storm[-1])
        training.run(1)
    training.run(QUIET_AFTER_ALARM + 10)

    assert all(opening)
    assert all(storm[:SKIPS_MEASURED])
    assert sum(storm[SKIPS_MEASURED:]) <= 1
    assert training.governor.takes_skip()


@pytest.mark.parametrize("drag_s", [0.01, 0.03])
def test_ops_cost_by_how_much_the_step_was_longer_than_usual(drag_s: float) -> None:
    """Most of it PyTorch spends, outside of our account; it is paid from the same budget."""
    training = Training(cost_s=0.01, drag_s=drag_s, overhead_budget=0.01).run(SETTLING)
    spent, seconds = training.spent_ns / 1e9 + training.dragged_s, training.seconds

    training.run(20_000)

    spent = training.spent_ns / 1e9 + training.dragged_s - spent
    seconds = training.seconds - seconds
    assert training.dragged_s > 5 * drag_s
    assert 0.2 * 0.01 * seconds <= spent <= 0.01 * seconds + drag_s


def test_ops_are_counted_whole_and_in_their_turn() -> None:
    """A part of them has no shares."""
    training = Training(cost_s=0.1, drag_s=0.5, overhead_budget=0.9).run(400)

    late = [(wanted, part) for step, wanted, part in training.samples if step > 100]
    parts = {part for wanted, part in late if wanted == OPS}
    every = (*TURNS, OPS)
    turns = [every.index(wanted) for wanted, _ in late if wanted != TURNS[0]]
    assert parts == {(0, 1)}
    assert all(later != earlier for earlier, later in pairwise(turns))


@pytest.mark.parametrize("every", [8, 64])
def test_looks_are_taken_as_often_as_they_are_asked_for(every: int) -> None:
    """After each multiple of the interval, whatever they cost; or all ops of it are counted."""
    costs: dict[Topic | Observation, float] = {Observation.OPERANDS: 0.05}
    training = Training(costs=costs, probe_every=every).run(SETTLING + 512)
    looks = [step for step, wanted, _ in training.samples if wanted & OF_OPS]

    # In the first iterations nobody has asked yet.
    assert set(range(every + 1, SETTLING + 512, every)) <= set(looks)


def test_ranks_that_look_at_different_intervals_share_the_rarer_looks() -> None:
    """Ranks wait for one another: apart, each would delay all the others."""
    often, seldom = (
        {s for s, wanted, _ in Training(probe_every=every).run(1000).samples if wanted == PROBE}
        for every in (8, 64)
    )

    assert seldom
    assert seldom < often


@pytest.mark.parametrize("drag_s", [0.0, 0.004])
def test_looks_are_charged_and_leave_samples_their_share(drag_s: float) -> None:
    """What they cost delays samples, also what only the duration shows; but not for ever."""

    def samples_beside(every: int) -> int:
        costs: dict[Topic | Observation, float] = dict.fromkeys(Topic, 0.004)
        costs[Observation.OPERANDS] = 0.005 - drag_s
        training = Training(costs=costs, drag_s=drag_s, probe_every=every).run(SETTLING + 8192)
        return sum(s >= SETTLING and wanted != PROBE for s, wanted, _ in training.samples)

    alone, beside = samples_beside(0), samples_beside(4)
    assert PROBE_SHARE / 2 * alone < beside < 0.9 * alone


@pytest.mark.parametrize(
    "settings", [{"level": "light"}, {"op_census": "window"}], ids=["light", "window"]
)
def test_no_look_is_taken_where_ops_are_not_observed(settings: dict[str, str]) -> None:
    """Nobody would see the operands."""
    training = Training(probe_every=8, **dict[str, Any](settings)).run(200)

    assert not any(wanted & PROBE for _, wanted, _ in training.samples)


def test_nothing_is_sampled_while_a_profiler_records() -> None:
    """Neither would be worth anything; what was due comes afterwards."""
    training = Training(cost_s=0.0).run(100)
    training.governor.is_held = True
    training.run(1)
    before = len(training.samples)
    training.run(50)
    while_held = len(training.samples) - before
    training.governor.is_held = False
    training.run(2)

    assert while_held == 0
    assert len(training.samples) > before


def test_what_was_spent_outside_is_paid_like_the_rest() -> None:
    """A debt postpones samples until steps have earned it."""
    free, owing = Training(cost_s=0.0), Training(cost_s=0.0)
    for training in (free, owing):
        training.run(SETTLING + 8)
    owing.governor.owe(0.1e9)  # a hundred steps of a budget of a hundredth
    for training in (free, owing):
        training.samples.clear()
        training.run(90)

    assert len(owing.samples) <= 1
    assert len(free.samples) > 20
