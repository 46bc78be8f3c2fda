"""A loss scale that begins far too high is found by the scaler, and is nobody's fault."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from math import log2
from typing import Any
from zlib import crc32

import pytest
from torch import nn

from tests.stories.calibration import TRAININGS
from tests.stories.stage import ALARMS, LEVELS, Program, bare_digest, turn, watch

NOT_OF_THE_NIGHT = 4
"""One in so many is not of the night alone, at the level of its turn."""


def _trainings() -> list[Any]:
    found = []
    for (shape, network, start), level in product(TRAININGS, LEVELS):
        name = f"{shape.__name__}-{network.__name__}-2^{log2(start):.0f}"
        is_by_day = level == turn(name) and crc32(name.encode()) % NOT_OF_THE_NIGHT == 0
        marks = [] if is_by_day else [pytest.mark.nightly]
        found.append(pytest.param(shape, network, start, level, id=f"{name}-{level}", marks=marks))
    return found


# torch says so where the first step of a training is skipped; that is as it should be.
@pytest.mark.filterwarnings("ignore:Detected call of:UserWarning")
@pytest.mark.usefixtures("one_thread", "samples_in_one_piece")
@pytest.mark.rotating
@pytest.mark.parametrize(("shape", "network", "start", "level"), _trainings())
def test_a_training_that_calibrates_is_left_alone(
    shape: Callable[..., Program], network: Callable[[], nn.Module], start: float, level: str
) -> None:
    """The scale falls to where gradients fit, steps are taken from there on, and nothing is changed."""
    build = partial(shape, network, start)
    program, monitor = watch(build, level)

    assert [(f.kind, f.where, f.summary) for f in monitor.findings if f.severity in ALARMS] == []
    assert 2.0**4 <= program.trace[-1][1] < start
    assert program.digest() == bare_digest(build)
