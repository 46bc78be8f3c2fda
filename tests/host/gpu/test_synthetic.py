"""GPUs that do not exist behave like some that do."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ampwatch.host.fleet.gpus import Feature
from ampwatch.host.gpu.synthetic import SyntheticSource
from tests.workshop.clocks import Clock

SECONDS = range(0, 1000, 5)
COUNTERS = (
    Feature.ENERGY,
    Feature.THROTTLE,
    Feature.NVLINK,
    Feature.SM_CYCLES,
    Feature.TENSOR_CYCLES,
    Feature.ECC,
)
RATIOS = (
    Feature.UTILIZATION,
    Feature.TENSOR_ACTIVE,
    Feature.SM_ACTIVE,
    Feature.SM_OCCUPANCY,
    Feature.DRAM_ACTIVE,
)


def watch() -> tuple[list, list[tuple[str, int]]]:
    """Read every 5 s; return the passes and the XID errors."""
    clock, errors = Clock(), []
    source = SyntheticSource(lambda *error: errors.append(error), clock)
    passes = []
    for _ in SECONDS:
        passes.append(source.read())
        clock.now += 5
    return passes, errors


def test_counters_never_fall_and_ratios_are_ratios() -> None:
    """Of every GPU and every part."""
    passes, _ = watch()
    for before, after in pairwise(passes):
        for old, new in zip(before.gpus, after.gpus, strict=True):
            for feature in COUNTERS:
                for part in old.answers[feature]:
                    if (was := old.number(feature, part)) is not None:
                        assert new.number(feature, part) >= was, (feature, part)
            for feature in RATIOS:
                for part in new.answers[feature]:
                    value = new.number(feature, part)
                    assert value is None or 0 <= value <= 1


def test_energy_is_what_power_adds_up_to() -> None:
    """So that the rate of the counter on a dashboard is the gauge beside it."""
    passes, _ = watch()
    powers = [p.gpus[0].number(Feature.POWER) for p in passes]
    trapezoids = sum(5 * (a + b) / 2 for a, b in pairwise(powers))

    used = passes[-1].gpus[0].number(Feature.ENERGY) - passes[0].gpus[0].number(Feature.ENERGY)

    assert used == pytest.approx(trapezoids, rel=1e-3)
