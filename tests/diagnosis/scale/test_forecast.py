"""Where the scale is heading."""

from __future__ import annotations

import math
import random

import pytest

from ampwatch.diagnosis.evidence.iteration import ScalerSettings
from ampwatch.diagnosis.scale.falls import SCALE_FLOOR, alarm_rate, drift, steps_until


def _simulated_drift(rate: float, scaler: ScalerSettings, steps: int) -> float:
    """Let a scaler run and measure how log2(scale) really moves per step."""
    draw, log2_scale, tracker = random.Random(0), 0.0, 0
    for _ in range(steps):
        if draw.random() < rate:
            log2_scale += math.log2(scaler.backoff_factor)
            tracker = 0
            continue
        tracker += 1
        if tracker == scaler.growth_interval:
            log2_scale += math.log2(scaler.growth_factor)
            tracker = 0
    return log2_scale / steps


@pytest.mark.parametrize(
    ("rate", "scaler"),
    [
        (0.05, ScalerSettings(2.0, 0.5, 20)),
        (0.01, ScalerSettings(2.0, 0.5, 20)),
        (0.02, ScalerSettings(2.0, 0.25, 50)),
        (0.3, ScalerSettings(4.0, 0.5, 3)),
        (1.0, ScalerSettings(2.0, 0.5, 2000)),
    ],
)
def test_the_drift_is_the_drift_of_a_simulated_scaler(rate: float, scaler: ScalerSettings) -> None:
    """The closed form agrees with 400 000 steps of a scaler in Python."""
    simulated = _simulated_drift(rate, scaler, 400_000)

    assert drift(rate, scaler) == pytest.approx(simulated, rel=0.1, abs=2e-3)


def test_the_alarm_line_is_one_step_in_2886_at_the_default_interval() -> None:
    """The number that the documentation names."""
    assert 1 / alarm_rate(ScalerSettings(2.0, 0.5, 2000)) == pytest.approx(2885.9, abs=0.1)
    assert 1 / alarm_rate(ScalerSettings(2.0, 0.5, 1000)) == pytest.approx(1443.2, abs=0.1)


@pytest.mark.parametrize(
    "scaler",
    [ScalerSettings(2.0, 0.5, 20), ScalerSettings(3.0, 0.7, 100), ScalerSettings(2, 0.1, 5)],
)
def test_at_the_alarm_line_the_scale_stands_still(scaler: ScalerSettings) -> None:
    """Above it the scale falls, below it the scale rises."""
    line = alarm_rate(scaler)

    assert drift(line, scaler) == pytest.approx(0.0, abs=1e-12)
    assert drift(line * 1.5, scaler) < 0 < drift(line / 1.5, scaler)


def test_a_storm_from_the_default_scale_reaches_the_floor_after_144_backoffs() -> None:
    """65536 is 2^16 and the floor 2^-128: 144 halvings, as counted on a real scaler."""
    assert steps_until(65536.0, SCALE_FLOOR, -1.0) == 144
    assert steps_until(65536.0, 1.0, -1.0) == 16


def test_a_scale_at_the_floor_is_there_and_one_that_rises_never_gets_there() -> None:
    """0 and ``None`` are different answers."""
    assert steps_until(0.0, SCALE_FLOOR, -1.0) == 0
    assert steps_until(2.0, 1.0, 0.5) is None
