"""The trouble of modules over the course of a run, held against all records at once."""

from __future__ import annotations

import math
import random

import pytest

from ampwatch.host.fleet import module_map
from ampwatch.host.fleet.module_map import (
    EXPECTED,
    GRADIENT_ENDS,
    MAP_REASONS,
    MAX_COLUMNS,
    NOTABLE,
    OUTPUT_ENDS,
    QUIET,
    UNKNOWN,
    ModuleMap,
    amount_of,
    byte_of,
    ends_of,
)
from ampwatch.host.fleet.ranges import Ranges
from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.numerics.formats import narrowest_half
from ampwatch.settings import Settings
from ampwatch.wire.records import RangeRecord, SkipClass, Topic
from tests.workshop.records import histogram, ranges, step

NONFINITE, GRADIENT, LOST, HEADROOM, UNCHANGED = range(len(MAP_REASONS))
FINE = histogram(-8, 1000)


def run_of(*samples: list[RangeRecord], skip: SkipClass = SkipClass.NONE) -> Ranges:
    """A run in float16 with these samples, one a step."""
    run = Ranges(Settings(), 0)
    run.know_autocast(narrowest_half(["float16"]))
    for index, records in enumerate(samples):
        take(run, index, records, skip)
    return run


def take(
    run: Ranges, index: int, records: list[RangeRecord], skip: SkipClass = SkipClass.NONE
) -> None:
    for record in records:
        run.put(record)
    run.close_sample(index)
    run.map.put_step(step(index, skip_class=skip))


def bytes_of(run: Ranges, module: str, plane: int) -> list[int]:
    number = list(run.map.dtypes).index(module)
    return [c.planes[plane].ljust(number + 1, b"\0")[number] for c in run.map.spans]


def output(exponents: ExponentHistogram, module: str = "fc") -> RangeRecord:
    return ranges(module, Topic.ACTIVATION, exponents, dtype="float16")


def test_what_was_not_measured_is_not_healthy() -> None:
    """A sample of gradients says nothing of outputs, and a module without a sample has no byte."""
    run = run_of([ranges("fc", Topic.GRADIENT, FINE)], [output(FINE, "other")])

    assert bytes_of(run, "fc", GRADIENT) == [QUIET, UNKNOWN]
    assert bytes_of(run, "fc", NONFINITE) == [UNKNOWN, UNKNOWN]
    assert bytes_of(run, "fc", LOST) == [QUIET, UNKNOWN]
    assert bytes_of(run, "fc", HEADROOM) == [UNKNOWN, UNKNOWN]
    assert bytes_of(run, "other", HEADROOM) == [UNKNOWN, QUIET]
    assert bytes_of(run, "other", UNCHANGED) == [UNKNOWN, UNKNOWN]


@pytest.mark.parametrize(
    ("record", "plane", "amount"),
    [
        (output(histogram(-8, 750, nans=200, positive_infs=50)), NONFINITE, 0.25),
        (ranges("fc", Topic.BUFFER, histogram(-8, 3, nans=1)), NONFINITE, 0.25),
        (ranges("fc", Topic.ACTIVATION_GRADIENT, histogram(-8, 1, nans=1)), GRADIENT, 0.5),
        (ranges("fc", Topic.GRADIENT, histogram(-30, 300, *[0] * 20, 700)), LOST, 0.3),
        (output(histogram(15, 9, amax=65504.0 / 2)), HEADROOM, 1 - 1 / 8),
        (ranges("fc", Topic.UPDATE, histogram(-12, 20, zeros=80)), UNCHANGED, 0.8),
    ],
)
def test_each_kind_of_trouble_keeps_how_bad_it_is(
    record: RangeRecord, plane: int, amount: float
) -> None:
    """Within 5 %, and the other kinds are quiet or unknown."""
    run = run_of([record])

    (byte,) = bytes_of(run, "fc", plane)
    assert amount_of(MAP_REASONS[plane], byte) == pytest.approx(amount, rel=0.05)
    for other in set(range(len(MAP_REASONS))) - {plane}:
        assert bytes_of(run, "fc", other)[0] < NOTABLE


@pytest.mark.parametrize(
    ("skip", "topic", "byte"),
    [
        (SkipClass.CALIBRATING, Topic.GRADIENT, EXPECTED),
        (SkipClass.PROBE, Topic.GRADIENT, EXPECTED),
        (SkipClass.STORM, Topic.GRADIENT, None),
        (SkipClass.NONE, Topic.GRADIENT, None),
        (SkipClass.CALIBRATING, Topic.ACTIVATION, None),
    ],
)
def test_gradients_that_overflow_while_a_scale_is_sought_are_expected(
    skip: SkipClass, topic: Topic, byte: int | None
) -> None:
    """Every training with a scaler begins so; an output that overflows is no part of that."""
    run = run_of([ranges("fc", topic, histogram(4, 9, positive_infs=9))], skip=skip)

    (found,) = bytes_of(run, "fc", NONFINITE if topic is Topic.ACTIVATION else GRADIENT)
    assert found == byte if byte is not None else found >= NOTABLE


def test_a_sample_whose_step_is_never_told_is_kept() -> None:
    """The record of its step may be lost: the next sample settles it, and forgives nothing."""
    run = Ranges(Settings(), 0)
    run.put(ranges("fc", Topic.GRADIENT, histogram(4, 9, nans=9)))
    run.close_sample(0)
    take(run, 1, [ranges("fc", Topic.GRADIENT, FINE, step=1)], SkipClass.CALIBRATING)

    assert bytes_of(run, "fc", GRADIENT) == [byte_of("nonfinite_gradient", 0.5), QUIET]


def test_a_step_may_be_told_before_its_sample() -> None:
    """What is measured on a device is read some steps later; each sample finds its own step."""
    run = Ranges(Settings(), 0)
    for index, skip in enumerate((SkipClass.NONE, SkipClass.PROBE, SkipClass.NONE)):
        run.map.put_step(step(index, skip_class=skip))
    for index in range(3):
        run.put(ranges("fc", Topic.GRADIENT, histogram(4, 9, nans=9), step=index))
        run.close_sample(index)

    bad = byte_of("nonfinite_gradient", 0.5)
    assert bytes_of(run, "fc", GRADIENT) == [bad, EXPECTED, bad]


@pytest.mark.parametrize("seed", range(3))
def test_a_cell_is_the_worst_of_all_records_in_its_steps(seed: int) -> None:
    """Held against all records there ever were, however often columns were merged."""
    rng = random.Random(seed)
    names = [f"blocks.{i}" for i in range(9)]
    run = Ranges(Settings(), 0)
    run.know_autocast(narrowest_half(["float16"]))
    # By step and module: the share that is not finite, the bits of headroom.
    seen: dict[tuple[int, str], tuple[float, float]] = {}
    index = 0
    for _ in range(700):
        index += rng.choice((1, 1, 1, 7))
        records = []
        # Modules come to be known late, and are not in each sample.
        for name in rng.sample(names[: 1 + index // 60], k=rng.randint(1, min(9, 1 + index // 60))):
            nans = rng.choice((0,) * 40 + (1, 30, 900))
            bits = rng.choice((0.3, 1.2, 1.7, 5.0, 9.0, 9.0, 9.0, 9.0))
            amax = 65504.0 / 2**bits
            records.append(output(histogram(3, 1000 - nans, nans=nans, amax=amax), name))
            seen[index, name] = nans / 1000, bits
        take(run, index, records)

    assert len(run.map.spans) <= MAX_COLUMNS
    assert run.map.spans[-1].last_step == index
    for name in names:
        nonfinite, headroom = bytes_of(run, name, NONFINITE), bytes_of(run, name, HEADROOM)
        for column, one, other in zip(run.map.spans, nonfinite, headroom, strict=True):
            within = [
                seen[s, name]
                for s in range(column.first_step, column.last_step + 1)
                if (s, name) in seen
            ]
            worst = max((share for share, _ in within), default=None)
            least = min((bits for _, bits in within), default=None)
            assert one == (
                UNKNOWN if worst is None else byte_of("nonfinite", worst) if worst else QUIET
            )
            if least is None:
                assert other == UNKNOWN
            else:
                closeness = 1 - least / 8
                assert other == (byte_of("activation_headroom", closeness) if least < 2 else QUIET)


def test_the_ends_of_the_exponents_are_those_of_all_samples() -> None:
    """From what one element in a hundred is below to the largest one, over outputs and gradients."""
    wide = histogram(-20, 1, *[0] * 9, 500, *[0] * 9, 500)  # -20, -10 and 0
    run = run_of([output(wide), ranges("fc", Topic.GRADIENT, histogram(3, 9))])

    (low,), (high,) = bytes_of(run, "fc", OUTPUT_ENDS), bytes_of(run, "fc", OUTPUT_ENDS + 1)
    assert ends_of(low, high) == (-10, 0)
    (low,), (high,) = bytes_of(run, "fc", GRADIENT_ENDS), bytes_of(run, "fc", GRADIENT_ENDS + 1)
    assert ends_of(low, high) == (3, 3)

    column = run.map.spans[0]
    column.merge(run_of([output(histogram(5, 1)), ranges("fc", Topic.UPDATE)]).map.spans[0])
    assert ends_of(*(column.planes[OUTPUT_ENDS + i][0] for i in (0, 1))) == (-10, 5)
    assert ends_of(UNKNOWN, UNKNOWN) is None


def test_the_largest_of_a_subsample_is_that_of_all() -> None:
    """Bins of a subsample may miss what is nearest to the limit."""
    run = run_of([output(histogram(0, 9, amax=40000.0, numel=10**6))])

    (low,), (high,) = bytes_of(run, "fc", OUTPUT_ENDS), bytes_of(run, "fc", OUTPUT_ENDS + 1)
    assert ends_of(low, high) == (0, math.ceil(math.log2(40000.0)))


def test_a_sample_that_never_ends_takes_no_more_memory_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ring may be damaged, or made to harm; once a sample ends, what was left out is counted."""
    monkeypatch.setattr(module_map, "MAX_SAMPLED", 3)
    run = Ranges(Settings(), 0)
    run.know_autocast(narrowest_half(["float16"]))
    for i in range(50):
        run.map.put(output(FINE, f"m{i}"))

    run.close_sample(0)
    run.map.put_step(step(0))

    assert list(run.map.dtypes) == ["m0", "m1", "m2"]
    assert run.map.left_out == 47


def test_a_map_without_a_sample_has_no_columns() -> None:
    """Totals alone, of an iteration of which nothing was written, make no column."""
    empty = ModuleMap()
    empty.close(3, lambda _: ())
    empty.put_step(step(3))

    assert empty.spans == []
