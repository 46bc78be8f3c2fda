"""Outputs that approach the end of float16, and those that only vary."""

from __future__ import annotations

import math
import random

import pytest

from ampwatch.diagnosis.forward.forward_range import FOCUS_STEPS, MAX_FOCUS, steps_ahead
from ampwatch.wire.records import Topic
from tests.workshop.replay import Replay, measured


def outputs(replay: Replay, name: str, amax: float, dtype: str = "float16") -> None:
    replay.take(measured(Topic.ACTIVATION, name, [amax, amax / 3, -amax / 7], dtype))


@pytest.mark.parametrize("growth", [1.02, 1.12, 1.3])
def test_a_rising_output_is_reported_at_least_five_steps_before_it_overflows(growth: float) -> None:
    """From within a factor of four of the limit on, and at its module."""
    replay, amax, told_at = Replay(), 1500.0, None
    while amax <= 65504.0:
        outputs(replay, "layers.1", amax)
        if told_at is None and replay.findings:
            told_at = amax
        amax *= growth

    assert replay.roots == [("headroom_low", "layers.1")]
    assert told_at is not None
    assert told_at >= 65504.0 / 4.0
    # With 30 % a step a factor of four is over in five steps.
    assert math.log(65504.0 / told_at) / math.log(growth) >= min(5, math.log(4, growth) - 1)


@pytest.mark.rotating
def test_a_large_output_that_only_varies_is_healthy() -> None:
    """However close it is."""
    rng = random.Random(1)
    replay = Replay()
    for _ in range(3000):
        outputs(replay, "m", 30000.0 * math.exp(rng.gauss(0.0, 0.15)))

    assert replay.findings == []


def test_a_rising_output_that_is_far_from_the_limit_is_healthy() -> None:
    """It has all the room it needs."""
    replay = Replay()
    for step in range(100):
        outputs(replay, "m", 1.0 + step)

    assert replay.findings == []


def test_a_rising_output_in_bfloat16_is_healthy() -> None:
    """The range of bfloat16 ends 33 orders of magnitude later."""
    replay = Replay(scaled=False, dtypes=("bfloat16",))
    for step in range(60):
        outputs(replay, "m", 1e4 * 1.1**step, "bfloat16")

    assert replay.findings == []


def test_what_comes_close_is_measured_in_every_iteration_for_a_while() -> None:
    """A few modules at a time, and not for ever."""
    replay = Replay()
    for number in range(20):
        replay.take(measured(Topic.ACTIVATION, f"m{number}", [5000.0], "float16"))
    first = set(replay.diagnosis.focus)
    for _ in range(FOCUS_STEPS + 1):
        replay.take(measured(Topic.ACTIVATION, "far", [1.0], "float16"))
    later = set(replay.diagnosis.focus)
    replay.take(measured(Topic.ACTIVATION, "m0", [5000.0], "float16"))

    assert first == {f"m{number}" for number in range(MAX_FOCUS)}
    assert later == set()
    assert replay.diagnosis.focus == set()


def test_what_has_grown_since_is_measured_closely_again() -> None:
    """By a quarter or more."""
    replay = Replay()
    outputs(replay, "m", 5000.0)
    for _ in range(FOCUS_STEPS + 1):
        replay.take()
    outputs(replay, "m", 7000.0)

    assert replay.diagnosis.focus == {"m"}


@pytest.mark.rotating
@pytest.mark.parametrize("memory", [0.5, 0.9, 0.98])
def test_a_large_output_that_wanders_is_healthy(memory: float) -> None:
    """Weights move slowly, so outputs do: for a dozen steps up, then down, by a few percent."""
    rng = random.Random(2)
    for _ in range(5):
        replay, offset = Replay(), 0.0
        for _ in range(300):
            offset = memory * offset + rng.gauss(0.0, 0.07 * math.sqrt(1.0 - memory**2))
            outputs(replay, "m", 30000.0 * math.exp(offset))

        assert replay.findings == []


def test_a_large_output_that_rose_and_has_come_to_rest_is_healthy() -> None:
    """Most outputs grow at the start of a training; while they do, nobody knows where to."""
    rng = random.Random(3)
    replay = Replay()
    for step in range(600):
        outputs(replay, "m", (20000.0 - 19900.0 * 0.98**step) * math.exp(rng.gauss(0.0, 0.05)))
        if step == 150:
            replay.diagnosis.book.findings.clear()

    assert replay.findings == []


@pytest.mark.parametrize(("start", "growth"), [(300.0, 1.003), (10000.0, 1.05), (30000.0, 1.02)])
def test_a_noisy_rise_is_reported_in_time_wherever_it_begins(start: float, growth: float) -> None:
    """Batches differ by some percent; what creeps takes hundreds of steps."""
    rng = random.Random(4)
    replay, step = Replay(), 0
    while start * growth**step <= 65504.0:
        outputs(replay, "m", min(65504.0, start * growth**step * math.exp(rng.gauss(0.0, 0.04))))
        step += 1

    assert replay.only("headroom_low").first_step <= step - 5


def test_the_limit_is_reached_where_the_line_through_the_points_says() -> None:
    """On a straight line exactly there."""
    line = [(step, 2.0 + 0.5 * step) for step in range(0, 20, 2)]

    assert steps_ahead(line, 16.0) == pytest.approx((16.0 - 11.0) / 0.5)
    assert steps_ahead(line, 19.0) is None  # it has risen by less than what is left
    assert steps_ahead([(s, 11.0) for s in range(9)], 16.0) is None
    assert steps_ahead([(s, 9.0 - s) for s in range(9)], 16.0) is None
    assert steps_ahead([(0, 1.0), (1, 2.0)], 16.0) is None
    assert steps_ahead([(3, 1.0)] * 9, 16.0) is None


def test_one_jump_is_no_trend() -> None:
    """The outputs lie about a new level; a line through the points would pass the limit."""
    draw = random.Random(5)
    replay = Replay()
    for step in range(60):
        level = 400.0 if step < 30 else 30000.0
        outputs(replay, "layers.1", level * (1.0 + 0.02 * draw.random()))

    assert replay.findings == []


def test_what_rises_together_down_the_network_is_one_incident() -> None:
    """Seven modules, each of them fed by the one before."""
    replay, amax = Replay(), 2000.0
    while amax <= 60000.0:
        replay.take(
            *[
                measured(Topic.ACTIVATION, f"layers.{i}", [amax, -amax / 2], "float16")
                for i in range(7)
            ]
        )
        amax *= 1.1

    assert replay.roots == [("headroom_low", "layers.0")]
    assert {f.caused_by for f in replay.findings if not f.root} == {"headroom_low@layers.0"}
