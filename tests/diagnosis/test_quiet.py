"""Plain iterations are counted: all that comes of it is as if each had been judged by every detector."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ampwatch.diagnosis.detector import Known
from ampwatch.diagnosis.evidence.calls import NonfiniteClip
from ampwatch.diagnosis.evidence.iteration import Iteration, SamplingCost, ScalerSettings
from ampwatch.diagnosis.evidence.ops import OpCensus
from ampwatch.diagnosis.evidence.origins import BadInput
from ampwatch.diagnosis.evidence.scaler import CompiledGradients, ScalerChange
from ampwatch.diagnosis.pipeline import Diagnosis, SelfCost
from ampwatch.diagnosis.time.step_times import StepTimes
from ampwatch.settings import Settings
from ampwatch.wire.records import OptimizerRecord, Record, StepRecord, Topic
from ampwatch.wire.ring.encoding import encode
from tests.workshop.iterations import MadeUpScaler, iteration
from tests.workshop.replay import Replay, measured

MAX_PAYLOAD = 4096


class JudgesEach(Diagnosis):
    """A diagnosis to which no iteration is plain."""

    def deliver(self, *iterations: Iteration) -> None:
        for one in iterations:
            self._quiet = None
            super().deliver(one)


class Told:
    """A diagnosis of a kind, and all that it has said."""

    def __init__(self, kind: type[Diagnosis], dtypes: Sequence[str]) -> None:
        self.records: list[Record] = []
        self.notified: list[tuple[str, str, str]] = []
        self.dtypes = list(dtypes)
        self.diagnosis = kind(
            Settings.resolve({}, {}),
            65536.0,
            put=lambda *records: self.records.extend(records),
            notify=lambda news: self.notified.append(
                (news.finding.key, news.reason.name, news.finding.summary)
            ),
            cost=lambda: SelfCost(0, 0, 0),
            sampling_cost=lambda: SamplingCost(5, 1, 2, 3),
            known=Known(self.dtypes, {}),
            run_guarded=lambda work, *arguments: work(*arguments),
        )

    def said(self) -> tuple[Any, ...]:
        diagnosis = self.diagnosis
        # Totals of an optimizer whose step was taken are written after a batch: the newest holds.
        totals = [record for record in self.records if isinstance(record, OptimizerRecord)]
        passing = [record for record in totals if not record.skipped]
        records = [record for record in self.records if record not in passing]
        records += {record.index: record for record in totals}.values()
        # As bytes: a NaN is equal to none.
        payloads = [encode(record, MAX_PAYLOAD) for record in records]
        asked = diagnosis.last_step, diagnosis.attention(), diagnosis.iterations
        return payloads, self.notified, repr(diagnosis.book.findings), repr(asked)


def inside(thing: Any, known: set[int]) -> Any:  # noqa: PLR0911 - a form each
    """Return all that an object holds, in a form that can be compared; each object once."""
    if isinstance(thing, Enum | str | int | float | bool | bytes | None):
        return repr(thing)
    if id(thing) in known:
        return "again"
    known.add(id(thing))
    if isinstance(thing, dict):
        return {repr(key): inside(value, known) for key, value in thing.items()}
    if isinstance(thing, list | tuple | deque):
        return [inside(value, known) for value in thing]
    if isinstance(thing, set | frozenset):
        return sorted(map(repr, thing))
    if callable(thing):
        return "a function"
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    names = sorted({*getattr(thing, "__dict__", ()), *slots} - {"_quiet"})
    return {name: inside(getattr(thing, name), known) for name in names}


class Training(MadeUpScaler):
    """A training that a list of words describes: iterations, and what sensors say between them."""

    def __init__(self, growth_interval: int, *, scaled: bool) -> None:
        self.scale = 65536.0
        self.scaler = ScalerSettings(2.0, 0.5, growth_interval) if scaled else None
        self.step = self.tracker = 0
        self.optimizers, self.num_losses, self.has_scheduler = [0], 1, False
        self.said: list[Iteration | Callable[[Told], None]] = []

    def end(
        self, *, skip: bool = False, loss: float | None = None, given: float = 0.0, **more: Any
    ) -> None:
        """End an iteration."""
        before = self.scale
        if given:
            self.scale, self.tracker = given, 0
        else:
            self._move(found_inf=skip)
        # Of several optimizers the last one is skipped.
        verdicts = {index: skip and index == self.optimizers[-1] for index in self.optimizers}
        noisy = 2.0 + math.sin(7.0 * self.step) + 100.0 / (1 + self.step)
        made = iteration(
            step=self.step,
            time_ns=(self.step + 1) * 20_000_000,
            duration_s=0.02,
            loss=(noisy if loss is None else loss) if self.num_losses else math.nan,
            num_losses=self.num_losses,
            scale_before=before if self.scaler else math.nan,
            loss_scale=self.scale if self.scaler else math.nan,
            growth_tracker=self.tracker if self.scaler else -1,
            scaler=self.scaler,
            scale_given=bool(given),
            found_inf=verdicts if self.scaler else {},
            applied_directly=() if self.scaler else tuple(self.optimizers),
            scheduler_stepped=frozenset(self.optimizers if self.has_scheduler else ()),
        )
        self.said.append(replace(made, **more))
        self.step += 1

    def plain(self, iterations: int) -> None:
        for _ in range(iterations):
            self.end()

    def skips(self, iterations: int) -> None:
        for _ in range(iterations):
            self.end(skip=True)

    def loss(self, value: float) -> None:
        self.end(loss=value)

    def rise(self, factor: float) -> None:
        for number in range(12):
            self.end(loss=factor**number)

    def set_scale(self, scale: float) -> None:
        self.end(given=scale)

    def move_scale(self, scale: float) -> None:
        self.scale = scale

    def sample(self, values: Sequence[float]) -> None:
        """End an iteration in which all was measured."""
        ranges = [
            measured(Topic.GRADIENT, "a.w", values, scaled=self.scaler is not None),
            measured(Topic.WEIGHT, "a.w", [1.0, float(self.step)]),
            measured(Topic.ACTIVATION, "a", [v * 1e4 for v in values], "float16"),
        ]
        skip = not all(map(math.isfinite, values))
        self.end(skip=skip, ranges=ranges, topics=frozenset(r.topic for r in ranges))

    def counted(self, iterations: int) -> None:
        """End iterations whose ops were counted; a record of all but the first has to wait."""
        for _ in range(iterations):
            self.end(census=OpCensus(self.step))

    def untold(self, _: None) -> None:
        self.end(is_outcome_known=False, found_inf={})

    def unstepped(self, _: None) -> None:
        self.end(other_found_inf=True)

    def gap(self, iterations: int) -> None:
        self.step += iterations

    def have_optimizers(self, numbers: list[int]) -> None:
        self.optimizers = numbers

    def have_losses(self, number: int) -> None:
        self.num_losses = number

    def have_scheduler(self, has_one: bool) -> None:  # noqa: FBT001 - one value a word
        self.has_scheduler = has_one

    def see_dtype(self, dtype: str) -> None:
        self.said.append(lambda told: told.dtypes.append(dtype))

    def see_change(self, later: int) -> None:
        self._observe(ScalerChange(self.step + later, loaded=False, resumed=True))

    def see_input(self, _: None) -> None:
        self._observe(BadInput(self.step, True, 8, ""))  # noqa: FBT003

    def see_gradients(self, later: int) -> None:
        seen = CompiledGradients(self.step + later, "a.w", "mm", "float16", 3, 1, True)  # noqa: FBT003
        self._observe(seen)

    def see_clip(self, _: None) -> None:
        self._observe(NonfiniteClip(self.step, 0, "", 0, math.inf, 1.0, ""))

    def _observe(self, what: object) -> None:
        """Have a sensor say something in the open iteration."""
        self.said.append(lambda told: told.diagnosis.observe(what))


def say(word: str, *values: Any) -> st.SearchStrategy[tuple[str, Any]]:
    return st.tuples(st.just(word), st.sampled_from(values))


SCALES = (2.0**-3, 1.0, 1024.0, 2.0**20)

WORDS = st.one_of(
    say("plain", 1, 2, 3, 9, 17, 60, 250),
    say("skips", *range(1, 13)),
    say("loss", 0.0, -3.0, 1e3, 9e5, 2e6, 1e12, math.nan, math.inf),
    say("rise", 1.2, 2.0, 10.0),
    say("set_scale", *SCALES),
    say("move_scale", *SCALES),
    say(
        "sample",
        (1.0, 0.5),
        (0.0, 0.0),
        (1.0, math.inf),
        (math.nan, math.nan),
        (3.0, 0.0),
        (6.5, 1.0),
    ),
    say("counted", 1, 2),
    say("untold", None),
    say("unstepped", None),
    say("gap", 1, 2),
    say("have_optimizers", [0], [1], [0, 1]),
    say("have_losses", 0, 1, 4),
    st.tuples(st.just("have_scheduler"), st.booleans()),
    say("see_dtype", "bfloat16", "float16"),
    say("see_change", 0, 1, 2),
    say("see_gradients", 0, 1, 2),
    say("see_input", None),
    say("see_clip", None),
)


def hand_over(told: Told, said: Sequence[Any], sizes: Sequence[int]) -> None:
    """Hand what a training has said to a diagnosis, its iterations in batches of these sizes."""
    batch: list[Iteration] = []
    number = 0
    for one in said:
        if not isinstance(one, Iteration):
            told.diagnosis.deliver(*batch)
            batch.clear()
            one(told)
            continue
        batch.append(one)
        if len(batch) >= sizes[number % len(sizes)]:
            told.diagnosis.deliver(*batch)
            batch.clear()
            number += 1
    told.diagnosis.deliver(*batch)


trainings = given(
    words=st.lists(st.tuples(WORDS, st.sampled_from([0, 1, 3, 14])), min_size=4, max_size=20),
    growth_interval=st.sampled_from([3, 20, 2000]),
    dtypes=st.sampled_from([["float16"], [], ["bfloat16"]]),
    sizes=st.lists(st.sampled_from([1, 2, 7, 32]), min_size=1, max_size=4),
)


@pytest.mark.rotating
@pytest.mark.parametrize("scaled", [True, False])
@settings(max_examples=15)
@trainings
def test_a_batch_says_what_each_of_its_iterations_would(*, scaled: bool, **training: Any) -> None:
    """Findings, news, records byte by byte, and what every detector remembers."""
    compare(scaled=scaled, **training)


@pytest.mark.nightly
@pytest.mark.parametrize("scaled", [True, False])
@settings(max_examples=100)
@trainings
def test_no_training_is_found_of_which_a_batch_says_something_else(
    *, scaled: bool, **training: Any
) -> None:
    """Among other ones each night."""
    compare(scaled=scaled, **training)


def compare(
    *,
    scaled: bool,
    words: list[tuple[tuple[str, Any], int]],
    growth_interval: int,
    dtypes: list[str],
    sizes: list[int],
) -> None:
    """Hand a training over in batches and one by one."""
    training = Training(growth_interval, scaled=scaled)
    training.plain(3)
    for (word, value), healthy in words:
        getattr(training, word)(value)
        training.plain(healthy)
    batched, one_by_one = Told(Diagnosis, dtypes), Told(JudgesEach, dtypes)

    hand_over(batched, training.said, sizes)
    hand_over(one_by_one, training.said, [1])

    assert batched.said() == one_by_one.said()
    assert inside(batched.diagnosis, set()) == inside(one_by_one.diagnosis, set())


class Counts:
    """A place that counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *_: object) -> None:
        self.calls += 1


def test_a_plain_iteration_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand healthy ones a handful is: else all of this would be for nothing."""
    replay = Replay()
    judged = Counts()
    detect = StepTimes.detect
    monkeypatch.setattr(StepTimes, "detect", lambda *given: (judged(), detect(*given)))

    for _ in range(1000):
        replay.take()

    assert 1 <= judged.calls <= 3
    assert [record.step for record in replay.of(StepRecord)] == list(range(1000))


def test_plain_iterations_have_the_cost_of_the_batch_they_came_in() -> None:
    """It is cumulative, so the newest is right, and no record goes back."""
    spent = iter(range(0, 10**9, 1000))
    records: list[Any] = []
    diagnosis = Diagnosis(
        Settings.resolve({}, {}),
        math.nan,
        put=lambda *made: records.extend(made),
        notify=lambda _: None,
        cost=lambda: SelfCost(next(spent), 0, 0),
        sampling_cost=lambda: SamplingCost(5, 1, 2, 3),
        known=Known([], {}),
        run_guarded=lambda work, *arguments: work(*arguments),
    )
    training = Training(2000, scaled=False)
    training.plain(40)
    for start in range(0, 40, 8):
        diagnosis.deliver(*training.said[start : start + 8])  # type: ignore[arg-type]

    overhead = [r.overhead_ns for r in records if isinstance(r, StepRecord)]
    assert overhead == sorted(overhead)
    assert overhead[-1] == overhead[-8] > overhead[-9]
