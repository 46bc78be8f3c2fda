"""A training that is well is left alone, and not a bit of it is changed, at every level."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from tests.stories.healthy_loops import CONTROLS
from tests.stories.stage import ALARMS, bare_digest, watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.stories.stage import Program

pytestmark = [
    pytest.mark.filterwarnings("ignore:Detected call of:UserWarning"),
    pytest.mark.filterwarnings(
        "ignore:This process:DeprecationWarning"
    ),  # of fork, in a DataLoader
    pytest.mark.usefixtures("one_thread", "samples_in_one_piece"),
]


@pytest.mark.parametrize(
    ("level", "options"),
    [
        pytest.param("light", {}, id="light"),
        pytest.param("standard", {}, id="standard"),
        pytest.param("standard", {"sample_every": 1}, id="each step"),
        pytest.param("deep", {"sample_every": 1}, id="deep"),
    ],
)
@pytest.mark.parametrize("control", CONTROLS, ids=lambda build: build.__name__)
def test_a_loop_that_is_right_is_left_alone(
    control: Callable[[], Program], level: str, options: dict[str, int]
) -> None:
    """Neither a warning nor a critical, with samples now and then or of each step, and unchanged."""
    program, monitor = watch(control, level, **options)

    assert [(f.kind, f.where, f.summary) for f in monitor.findings if f.severity in ALARMS] == []
    assert program.digest() == bare_digest(control)
    assert all(math.isfinite(loss) for loss, _ in program.trace)
