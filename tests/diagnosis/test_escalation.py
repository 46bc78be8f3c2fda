"""When every op is looked at: after something went wrong that nothing explains."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from ampwatch.diagnosis.detector import Shared
from ampwatch.diagnosis.escalation import (
    ALERT_STEPS,
    BEGINNING,
    BLIND,
    CALM_STEPS,
    FIRST_TRACES,
    MAX_BURSTS,
    MAX_TRACES,
    MAX_WATCHES,
    RECURRING_STEPS,
    REST,
    WATCHED_STEPS,
    Escalation,
)
from ampwatch.diagnosis.evidence.iteration import Attention, ScalerSettings, TensorRange
from ampwatch.diagnosis.evidence.origins import OriginKind
from ampwatch.diagnosis.evidence.rounding import SumSeen
from ampwatch.diagnosis.forward.culprit_ops import RECURS, CulpritOps
from ampwatch.diagnosis.steps.skips import CALIBRATION_STEPS
from ampwatch.diagnosis.steps.steps import StepJudge
from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.wire.records import Finding, Severity, Topic
from tests.workshop.origins import NAN, inside, traced
from tests.workshop.replay import Replay, measured
from tests.workshop.simulation import Simulation

OVER = inside(spread_to={"loss"}, in_backward=True)
POISONED = inside("mm", kind=OriginKind.BUFFER, out=NAN, spread_to={"loss"}, in_backward=True)
NEVER = 10**6
"""A growth interval that no test lives to see."""


class Run(Simulation):
    """Iterations through a scaler and the escalation; writes down which would be traced."""

    def __post_init__(self) -> None:
        super().__post_init__()
        shared = Shared(self.book)
        self.judge = StepJudge(shared.skips)
        self.culprits = shared.build(CulpritOps)
        self.escalation = shared.build(Escalation)
        self.traced: list[int] = []
        self.explains = False
        self.trace = OVER

    def take(self, iteration: Any) -> None:
        if self.escalation.wants_trace:
            self.traced.append(iteration.step)
            if self.explains:
                trace = traced(self.trace, step=iteration.step, loss_nonfinite=True)
                self.culprits.observe_trace(trace)
        self.escalation.detect(iteration, self.judge.judge(iteration))
        self.step = iteration.step + 1

    def calm(self, steps: int) -> Run:
        self.run([False] * steps)
        return self

    def skip(self, steps: int) -> Run:
        """Skip steps in a row."""
        self.run([True] * steps)
        return self

    def bad_loss(self) -> Run:
        """One iteration whose loss is not finite, and which is not skipped."""
        self.run([False], loss=math.nan)
        return self

    def fail(self, steps: int, *, explains: bool = True) -> list[int]:
        """Have iterations with a bad loss; return after which all is known.

        Args:
            steps: How many.
            explains: Whether a trace names their op.
        """
        self.explains = explains
        known = []
        for _ in range(steps):
            self.bad_loss()
            known += [self.step - 1] * self.escalation.is_known
        return known

    def leave_buffer(self, step: int) -> None:
        """A buffer is not finite as of a step."""
        found = "buffer_nonfinite", Severity.CRITICAL, "buffer:b", "what", "to do"
        self.book.make(Finding(*found, first_step=step, last_step=step))

    def measured(self, topic: Topic, *, nonfinite: int, found_inf: bool) -> Run:
        iteration = self.iteration({0: found_inf})
        histogram = ExponentHistogram(nans=nonfinite)
        iteration.ranges = [TensorRange(topic, "w", "m", "float16", histogram)]
        self.take(iteration)
        return self


def started() -> Run:
    """A training whose scale has been good enough for a while."""
    run = Run(scaler=ScalerSettings(2.0, 0.5, NEVER))
    run.calm(CALIBRATION_STEPS)
    return run


def test_a_calm_training_is_never_traced() -> None:
    """The inputs are not observed."""
    run = started().calm(1000)

    assert run.traced == []
    assert not run.escalation.wants_inputs
    assert not run.escalation.wants_ops


def test_calibration_is_no_event() -> None:
    """A scale that looks for its place skips, however often."""
    run = Run(scale=2.0**40).skip(30)
    run.calm(CALIBRATION_STEPS)

    assert run.traced == []
    assert not run.escalation.wants_inputs


def test_the_probe_of_a_growth_is_no_event() -> None:
    """It comes again with each growth, at a scale that never was good enough."""
    run = Run(scaler=ScalerSettings(2.0, 0.5, CALIBRATION_STEPS))
    for _ in range(20):
        run.calm(CALIBRATION_STEPS)
        run.skip(1)

    assert run.traced == []


def test_one_skip_is_no_event_and_two_in_a_row_are() -> None:
    """The iterations after the second one are traced, a few of them."""
    run = started().skip(1)
    run.calm(100)
    assert run.traced == []

    run.skip(2)
    second = run.step - 1
    run.calm(100)
    assert run.traced == list(range(second + 1, second + 1 + FIRST_TRACES))


def test_a_loss_that_is_not_finite_is_an_event_at_once() -> None:
    """Without a skip, and during calibration as well."""
    run = Run().calm(3)
    run.bad_loss().calm(50)

    assert run.traced == list(range(4, 4 + FIRST_TRACES))


def test_a_skip_that_recurs_at_a_scale_that_was_good_enough_is_an_event() -> None:
    """Each of them alone; within so many iterations, not after them."""
    for apart, expected in ((RECURRING_STEPS - 1, FIRST_TRACES), (RECURRING_STEPS, 0)):
        run = started().skip(1).calm(apart - 1)
        run.skip(1).calm(20)
        assert len(run.traced) == expected


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_scale_that_was_set_by_hand_has_to_prove_itself_again(*, by_hand: bool) -> None:
    """A skip at the new one does not recur at a scale that was good enough."""
    run = started().skip(1).calm(5)
    if by_hand:
        run.scale /= 64
    run.skip(1).calm(20)

    assert len(run.traced) == (0 if by_hand else FIRST_TRACES)


def _bursts(run: Run, events: int) -> list[int]:
    """Have events that nothing explains; return how many iterations each has had traced."""
    lengths = []
    for _ in range(events):
        before = len(run.traced)
        run.bad_loss().calm(3 * MAX_TRACES)
        lengths.append(len(run.traced) - before)
    return lengths


def test_bursts_double_up_to_a_limit_and_end_at_some_point() -> None:
    """Bursts end: after this many, tracing will not find it.

    After a long calm an event is a new story: a run of weeks is traced as at first.
    """
    run = started()
    lengths = _bursts(run, MAX_BURSTS + 3)

    assert lengths == [4, 8, 16, *[MAX_TRACES] * (MAX_BURSTS - 3), 0, 0, 0]
    assert _bursts(run.calm(CALM_STEPS), 2) == [FIRST_TRACES, 2 * FIRST_TRACES]


def test_skipped_steps_do_not_use_up_what_a_bad_loss_is_traced_by() -> None:
    """A scale that is too large for some batches skips again and again, and means nothing."""
    run = started()
    for _ in range(MAX_BURSTS + 2):
        run.skip(2).calm(3 * MAX_TRACES)
    before = len(run.traced)
    run.skip(2).calm(3 * MAX_TRACES)
    after_skips = len(run.traced) - before

    assert after_skips == 0
    assert _bursts(run, 2) == [FIRST_TRACES, 2 * FIRST_TRACES]


def test_an_event_in_a_burst_is_no_further_one() -> None:
    """A loss that stays bad is traced four times, and then eight."""
    run = started()
    for _ in range(FIRST_TRACES + 1):
        run.bad_loss()
    assert len(run.traced) == FIRST_TRACES

    run.calm(100)
    assert len(run.traced) == FIRST_TRACES + 2 * FIRST_TRACES


def test_once_an_op_was_named_a_failure_that_goes_on_is_looked_at_ever_more_seldom() -> None:
    """It is counted. After a rest one step is replayed, and if that names no op, one is traced."""
    run = started()
    known = run.fail(3 * REST)

    named = CALIBRATION_STEPS + 1
    look = named + REST
    assert run.traced == [named, look + 2]
    assert known == [n for n in range(CALIBRATION_STEPS + BEGINNING, run.step) if n != look]
    assert not run.escalation.wants_inputs
    (finding,) = run.book.findings
    assert finding.count == 3 * REST - len([CALIBRATION_STEPS, look, look + 1])


def test_a_look_that_names_nothing_is_the_last_one_for_long() -> None:
    """The op has left weights that are NaN: more looks show no more, and nothing is counted for it."""
    run = started()
    run.fail(2)
    run.trace = POISONED
    run.fail(2 * BLIND * REST)

    assert len(run.traced) == 2
    assert run.book.findings[0].count == REST


def test_a_failure_whose_op_nobody_names_is_traced_while_it_is_new() -> None:
    """And then a single time, as after a look that names nothing: what goes on is what was traced."""
    run = started()
    known = run.fail(BLIND * REST, explains=False)

    first = CALIBRATION_STEPS + 1
    assert run.traced == [*range(first, first + BEGINNING), first + BEGINNING + 1]
    assert known == list(range(CALIBRATION_STEPS + BEGINNING + 1, run.step))


def _find_more(run: Run) -> None:
    run.book.make(
        Finding("param_nonfinite", Severity.CRITICAL, "param:w", "", "", first_step=0, last_step=0)
    )


@pytest.mark.parametrize(
    ("happens", "expected"),
    [
        (lambda _: None, 0),
        (_find_more, 1),
        (lambda run: run.run([True], loss=math.nan), 1),
        (lambda run: run.calm(1), 1),
    ],
    ids=["nothing", "another finding", "another kind of failure", "over, and begins again"],
)
def test_what_is_new_in_a_failure_is_looked_at(
    happens: Callable[[Run], object], expected: int
) -> None:
    """Before the rest of what was known is over, and once."""
    run = started()
    run.fail(2 * REST + REST // 2)
    before = len(run.traced)
    happens(run)
    run.fail(REST // 2)

    assert len(run.traced) - before == expected


@pytest.mark.parametrize("names", [True, False])
def test_what_fails_beside_a_buffer_that_was_left_behind_is_traced_once(*, names: bool) -> None:
    """The op was named. Whether it is at fault in what follows in a row, one trace shows."""
    run = started()
    run.explains = True
    run.bad_loss().bad_loss()
    (named,) = run.traced
    run.leave_buffer(named)
    run.trace = OVER if names else POISONED
    for _ in range(REST // 2):
        run.bad_loss()

    assert run.traced == [named, named + 2]
    (overflow,) = run.book.of_kind("forward_overflow")
    assert (overflow.count > RECURS) is names


def test_what_fails_now_and_then_beside_it_is_not_traced() -> None:
    """A buffer with which a step has gone well is not why the next one fails."""
    run = started()
    run.explains = True
    run.bad_loss().bad_loss()
    (named,) = run.traced
    run.leave_buffer(named)
    for _ in range(REST // 4):
        run.calm(1).bad_loss()

    assert run.traced == [named]
    (overflow,) = run.book.of_kind("forward_overflow")
    assert overflow.count == 1 + REST // 4


@pytest.mark.parametrize(
    ("topic", "found_inf", "expected"),
    [
        (Topic.ACTIVATION, False, True),
        (Topic.WEIGHT, False, True),
        (Topic.GRADIENT, False, False),
        (Topic.UPDATE, False, False),
    ],
)
def test_state_that_is_not_finite_is_an_event(
    topic: Topic, *, found_inf: bool, expected: bool
) -> None:
    """With a scaler gradients are not: it skips what they would have done."""
    run = started().measured(topic, nonfinite=1, found_inf=found_inf)
    finite = started().measured(topic, nonfinite=0, found_inf=found_inf)

    assert run.escalation.wants_trace is expected
    assert not finite.escalation.wants_trace


def test_without_a_scaler_gradients_that_are_not_finite_are_an_event() -> None:
    """Nobody skips what they do."""
    run = started()
    iteration = run.iteration({})
    iteration.scaler = None
    histogram = ExponentHistogram(nans=1)
    iteration.ranges = [TensorRange(Topic.GRADIENT, "w", "m", "bfloat16", histogram)]
    run.take(iteration)

    assert run.escalation.wants_trace


def test_inputs_are_checked_for_a_while_after_any_skip() -> None:
    """Also after one that does not have anything traced: a bad batch comes alone."""
    run = started().skip(1)
    event = run.step - 1
    wanted = []
    while run.step < event + 2 * ALERT_STEPS:
        wanted.append(run.escalation.wants_inputs)
        run.calm(1)

    assert run.traced == []
    assert wanted == [True] * ALERT_STEPS + [False] * (len(wanted) - ALERT_STEPS)


def _watched(run: Run, steps: int) -> list[int]:
    seen: list[int] = []
    for _ in range(steps):
        if run.escalation.wants_ops:
            seen.append(run.step)
        run.calm(1)
    return seen


def test_what_may_be_rounding_away_is_watched_so_many_iterations() -> None:
    """Iterations after the suspicion; nothing is traced for that."""
    run = started()
    run.escalation.observe_sum(SumSeen(run.step - 1))
    first = run.step

    assert _watched(run, 200) == list(range(first, first + WATCHED_STEPS))
    assert run.traced == []


def test_suspicions_in_one_watch_are_one_and_there_are_few_watches() -> None:
    """A suspicion that the watches do not confirm is none."""
    run = started()
    seen: list[int] = []
    for _ in range(20):
        run.escalation.observe_sum(SumSeen(run.step - 1))
        seen += _watched(run, WATCHED_STEPS // 2)

    assert len(seen) == MAX_WATCHES * WATCHED_STEPS


def _flags(attention: Attention) -> tuple[bool, bool, bool]:
    return attention.trace, attention.inputs, attention.ops


def test_a_loss_that_is_not_finite_asks_for_a_trace_and_for_the_inputs() -> None:
    """In the iterations after it, and for nothing that rounds away."""
    replay = Replay(scale=1.0, scaled=False)
    replay.take()
    replay.take(loss=math.nan)

    assert _flags(replay.diagnosis.attention()) == (True, True, False)


def test_an_output_near_the_end_of_float16_is_asked_for_by_name() -> None:
    """The request is made as long as it is worth it."""
    replay = Replay()
    replay.take(measured(Topic.ACTIVATION, "block", [40000.0], "float16"))

    assert set(replay.diagnosis.attention().focus) == {"block"}


def test_a_running_sum_in_half_precision_asks_for_the_ops() -> None:
    """Whether it has stopped takes several additions in a row to tell."""
    replay = Replay()
    replay.take()
    replay.diagnosis.observe(SumSeen(0))

    assert _flags(replay.diagnosis.attention())[2] is True
