"""What is said of the time of steps: of made-up courses, and of none that is healthy."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import median

import pytest
from msgspec.structs import replace

from ampwatch.diagnosis.book import FindingBook
from ampwatch.diagnosis.detector import Shared
from ampwatch.diagnosis.evidence.iteration import DevicePhases, Iteration, StepTime
from ampwatch.diagnosis.evidence.ops import OpCensus
from ampwatch.diagnosis.time.spans import MAX_ROWS, SpanBuilder
from ampwatch.diagnosis.time.step_times import StepTimes, workers_needed
from ampwatch.wire.records import Phases, Severity, StepPhase, Topic
from tests.workshop.clocks import SECOND, START
from tests.workshop.iterations import TAKEN, iteration

STEP = 0.05
"""Duration of a healthy step. Unit: s."""

BATCH = 64 * 128


def phases(**seconds: float) -> Phases:
    """Phases by name; the others were not seen."""
    of = {StepPhase[name.upper()]: value for name, value in seconds.items()}
    return tuple(of.get(phase, 0.0) for phase in StepPhase)  # type: ignore[return-value]


def usual(data: float = 0.0, backward: float = 0.5, rest: float = 0.0) -> Phases:
    """A step of which a half is backward, and three tenths are forward."""
    return phases(
        data=data * STEP,
        forward=0.3 * STEP,
        backward=backward * STEP,
        optimizer=0.2 * STEP,
        rest=rest * STEP,
    )


class Course:
    """A training that goes on step by step."""

    def __init__(self) -> None:
        self.book = FindingBook(lambda _: None)
        self.times = StepTimes(Shared(self.book))
        self.step = 0
        self.now_ns = START * SECOND
        self.cpu_ns = self.delay_ns = 0

    def of(self, found: Phases, *, numel: int = BATCH, is_ahead: bool = False) -> Iteration:
        self.now_ns += round(sum(found) * SECOND)
        made = iteration(step=self.step, duration_s=sum(found), time_ns=self.now_ns)
        made.time = StepTime(
            phases=found,
            numel=numel,
            workers=0,
            cpu_ns=self.cpu_ns,
            run_delay_ns=self.delay_ns,
            is_ahead=is_ahead,
        )
        self.step += 1
        return made

    def go(
        self,
        seconds: float,
        each: Callable[[int], Phases],
        *,
        numel: Callable[[int], int] = lambda _step: BATCH,
        delay: float = 0.0,
        is_ahead: bool = False,
    ) -> Course:
        """Go on for a time; ``delay`` is the share of it in which the thread has no core."""
        end = 0.0
        while end < seconds:
            found = each(self.step)
            end += sum(found)
            self.cpu_ns += round((1.0 - delay) * sum(found) * SECOND)
            self.delay_ns += round(delay * sum(found) * SECOND)
            size = numel(self.step)
            made = self.of(found, numel=size, is_ahead=is_ahead)
            self.times.count([made])
        return self

    def kinds(self) -> list[tuple[str, Severity]]:
        return [(finding.kind, finding.severity) for finding in self.book.findings]


def noisy(found: Phases, seed: int = 0) -> Callable[[int], Phases]:
    """Steps that take up to a third longer by chance, and one in forty five times as long."""
    chance = random.Random(seed)

    def each(_step: int) -> Phases:
        factor = 5.0 if chance.random() < 1 / 40 else 1.0 + chance.random() / 3
        return tuple(seconds * factor for seconds in found)  # type: ignore[return-value]

    return each


# Waiting for data.


def test_steps_that_wait_for_data_are_said_to_with_the_workers_that_would_do() -> None:
    """Three parts of four: the loader makes a batch in three steps' time, so that three more would do."""
    course = Course().go(20.0, lambda _: usual(data=3.0))

    (finding,) = course.book.findings
    assert (finding.kind, finding.where, finding.severity) == ("input_bound", "step", "warning")
    assert finding.evidence["wait_share"] == pytest.approx(0.75)
    assert finding.evidence["wait_seconds"] == pytest.approx(3 * STEP)
    assert finding.evidence["workers_needed"] == 3
    assert "waits for data in 75% of the time" in finding.summary
    assert "no workers, and 3 would keep up" in finding.summary


def test_it_is_said_after_eighty_steps_and_counted_as_long_as_it_lasts() -> None:
    """Not any more once the loader keeps up."""
    course = Course().go(80 * 4 * STEP + 1.0, lambda _: usual(data=3.0))
    counted = course.book.findings[0].count
    course.go(20.0, lambda _: usual(data=3.0))
    longer = course.book.findings[0].count
    course.go(30.0, lambda _: usual())

    assert longer > counted
    assert course.book.findings[0].count - longer <= 32


@pytest.mark.parametrize(
    ("wait", "step", "workers", "needed"),
    [
        (0.030, 0.040, 0, 3),
        (0.010, 0.050, 0, 1),
        (0.020, 0.040, 4, 8),
        (0.020, 0.040, -1, 0),
        (0.040, 0.040, 2, 0),
        (1.000, 1.001, 2, 0),
    ],
)
def test_as_many_workers_as_make_batches_as_fast_as_they_are_used(
    wait: float, step: float, workers: int, needed: int
) -> None:
    """Their rate is a batch in ``workers * step``, or in the wait without any; none helps for ever."""
    assert workers_needed(wait, step, workers) == needed


@pytest.mark.parametrize(
    "each",
    [
        pytest.param(lambda _: usual(data=0.1), id="a_tenth"),
        pytest.param(noisy(usual(data=0.1)), id="noise"),
        pytest.param(lambda _: phases(step=STEP), id="not_split"),
    ],
)
def test_a_loader_that_keeps_up_is_left_alone(each: Callable[[int], Phases]) -> None:
    """Whatever chance does, and where nothing is known of phases."""
    assert Course().go(120.0, each).kinds() == []


def test_of_a_device_its_own_times_are_judged() -> None:
    """The host waits for data while the device computes: nothing is lost."""
    course = Course()
    for _ in range(4000):
        course.go(STEP / 2, lambda _: usual(data=3.0), is_ahead=True)
        if course.step % 4 == 0:
            course.times.observe(DevicePhases(course.step - 2, usual(data=0.02)))

    assert course.kinds() == []


def test_a_device_that_waits_for_data_is_said_to() -> None:
    """By the marks on its stream, of each fourth step."""
    course = Course()
    for _ in range(1200):
        course.go(STEP / 2, lambda _: usual(), is_ahead=True)
        if course.step % 4 == 0:
            course.times.observe(DevicePhases(course.step - 2, usual(data=1.0)))

    assert [kind for kind, _ in course.kinds()] == ["input_bound"]
    assert course.book.findings[0].summary.startswith(
        "The device waits for data in 50% of the time"
    )


# Slower steps.


def test_steps_that_have_become_slower_are_said_to_with_the_phase_and_the_step() -> None:
    """An info at first: the host may be busy with something else."""
    course = Course().go(30.0, lambda _: usual())
    since = course.step
    course.go(90.0, lambda _: usual(backward=1.5))

    (finding,) = course.book.findings
    assert (finding.kind, finding.severity) == ("step_slower", "info")
    assert since - 40 <= finding.first_step <= since + 40
    assert finding.evidence["ratio"] == pytest.approx(2.0)
    assert finding.evidence["phase_seconds_more"] == pytest.approx(STEP)
    assert "backward takes 50 ms more" in finding.summary


def test_a_host_that_has_no_core_to_spare_is_named() -> None:
    """From the scheduler's account of the thread."""
    course = Course().go(30.0, lambda _: usual())
    course.go(90.0, lambda _: tuple(2 * s for s in usual()), delay=0.5)  # type: ignore[arg-type, return-value]

    assert "it had no core in 50% more: this host is busy" in course.book.findings[0].summary


def test_what_is_slower_is_found_where_lengths_vary_from_batch_to_batch() -> None:
    """The mean size of batches is as it was, as far as chance goes."""
    chance = random.Random(3)
    sizes: dict[int, float] = {}

    def size(step: int) -> float:
        return sizes.setdefault(step, chance.lognormvariate(0.0, 0.5))

    def go(seconds: float, factor: float) -> None:
        course.go(
            seconds,
            lambda step: tuple(factor * size(step) * s for s in usual()),  # type: ignore[arg-type, return-value]
            numel=lambda step: round(size(step) * BATCH),
        )

    course = Course()
    go(60.0, 1.0)
    go(300.0, 3.0)

    assert [kind for kind, _ in course.kinds()] == ["step_slower"]


def test_where_each_step_has_a_call_without_gradients_it_is_part_of_a_step() -> None:
    """A teacher in evaluation mode: waits for data are found as elsewhere."""
    with_teacher = {**dict.fromkeys(("forward", "backward"), STEP / 2), "evaluation": STEP / 2}
    course = Course().go(30.0, lambda _: phases(data=3 * STEP, **with_teacher))

    assert [kind for kind, _ in course.kinds()] == ["input_bound"]
    assert course.times._evaluations == course.step  # those of the warm-up as well


def test_of_a_device_minutes_are_those_that_have_passed() -> None:
    """Each fourth iteration is timed, and all of them count."""
    course = Course()
    for number in range(12000):
        slow = 2.0 if number > 2000 else 1.0
        each = tuple(slow * s for s in usual())
        course.go(STEP / 2, lambda _, each=each: each, is_ahead=True)  # type: ignore[misc]
        if course.step % 4 == 0:
            course.times.observe(DevicePhases(course.step - 1, each))  # type: ignore[arg-type]

    (finding,) = course.book.findings
    assert finding.severity is Severity.WARNING
    assert finding.evidence["minutes"] == pytest.approx(10000 * 2 * STEP / 60, rel=0.05)


def _growing(course: Course) -> None:
    """A curriculum: each step a little longer, and slower by as much."""

    def size(step: int) -> float:
        return 1.0 + step / 1000

    course.go(
        400.0,
        lambda step: tuple(size(step) * s for s in usual()),  # type: ignore[arg-type, return-value]
        numel=lambda step: round(size(step) * BATCH),
    )


def _noise(course: Course) -> None:
    course.go(300.0, noisy(usual(), 1))


def _burst(course: Course) -> None:
    for _ in range(5):
        course.go(30.0, lambda _: usual(backward=3.0))
        course.go(60.0, lambda _: usual())


def _faster(course: Course) -> None:
    course.go(60.0, lambda _: usual(backward=0.1))


def _slightly(course: Course) -> None:
    course.go(120.0, lambda _: usual(backward=0.7))


@pytest.mark.parametrize("then", [_growing, _noise, _burst, _faster, _slightly])
def test_what_does_not_last_or_has_a_reason_is_left_alone(then: Callable[[Course], None]) -> None:
    """Ever larger batches, chance, bursts of half a minute."""
    course = Course().go(30.0, noisy(usual()) if then is _noise else lambda _: usual())
    then(course)

    assert course.kinds() == []


def test_iterations_whose_ops_were_observed_say_nothing_of_what_a_step_takes() -> None:
    """To observe ops takes time, and is not the training's."""
    course = Course().go(30.0, lambda _: usual())
    for _ in range(1000):
        course.times.detect(replace(course.of(usual(backward=3.0)), census=OpCensus(0)), TAKEN)

    assert course.kinds() == []


def test_where_each_iteration_is_sampled_the_wait_for_data_is_found_all_the_same() -> None:
    """Long steps: a sample of each is within the budget."""
    course = Course()
    for _ in range(200):
        sampled = replace(course.of(usual(data=3.0)), topics=frozenset({Topic.GRADIENT}))
        course.times.detect(sampled, TAKEN)

    assert [kind for kind, _ in course.kinds()] == ["input_bound"]


@pytest.mark.parametrize("scale", [0.02, 1.0, 3000.0])
def test_spans_are_the_same_however_many_steps_come_at_once(scale: float) -> None:
    """Short steps, of which one in many is kept; usual ones; and some so long that few are enough."""
    chance, course = random.Random(0), Course()
    each = noisy(tuple(seconds * scale for seconds in usual(data=0.3)))  # type: ignore[arg-type]
    steps = [course.of(each(0), numel=chance.randrange(9)) for _ in range(4000)]
    for step in steps[::50]:
        step.census = OpCensus(step.step)
    expected, rows, num, seconds, stride = [], [], 0, 0.0, 1
    for step in steps:
        num, total = num + 1, sum(step.time.phases)
        seconds += total
        if step.census is None and num % stride == 0:
            rows.append(total)
            if len(rows) > MAX_ROWS:
                rows, stride = rows[::2], 2 * stride
        if (num >= 16 and seconds >= 1.5) or (num >= 4 and seconds >= 600.0):
            expected.append((num, seconds, median(rows)))
            rows, num, seconds, stride = [], 0, 0.0, 1

    spans, found, begin = SpanBuilder(), [], 0
    while begin < len(steps):
        part = steps[begin : (begin := begin + chance.randrange(1, 400))]
        found += spans.take(part, [step.time.phases for step in part])

    assert len(expected) > 1
    assert [(span.steps, span.seconds, span.usual) for span in found] == expected
