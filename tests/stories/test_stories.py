"""Causes of a failure are named, once, in the right place; the healthy twin is left alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.stories import fp8_casts, outputs, rounding_ops
from tests.stories.collection import CONTROLS, STORIES
from tests.stories.stage import (
    ALARMS,
    Program,
    Story,
    at_each_level,
    check_left_alone,
    check_sick,
    once,
    ops,
)

# torch says so where the first step of a training is skipped; that is as it should be.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Detected call of:UserWarning"),
    # Of fork, in a DataLoader.
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    pytest.mark.usefixtures("one_thread", "samples_in_one_piece"),
]


WITH_A_LINE = [*rounding_ops.STORIES, *fp8_casts.STORIES]
"""Stories of single ops, whose lines are known."""


@pytest.mark.parametrize(("story", "level"), at_each_level(STORIES))
def test_what_is_wrong_is_the_one_root_finding(story: Story, level: str) -> None:
    """One root that is more than an info: its kind, its place, its phase; nothing is changed.

    An output that will overflow is told early enough for a checkpoint; an hour after is an obituary.
    """
    program, monitor = check_sick(story, level)

    assert not story.op or ops(monitor.findings, story.kind) == [story.op]
    if story in outputs.STORIES:
        (finding,) = [f for f in monitor.findings if f.kind == "headroom_low"]
        assert finding.first_step <= program.overflowed_at - 5
    if story in WITH_A_LINE:
        (finding,) = [f for f in monitor.findings if f.kind == story.kind and f.severity in ALARMS]
        assert "/tests/stories/" in finding.source


@pytest.mark.rotating
@pytest.mark.parametrize(("story", "level"), once(STORIES))
def test_the_twin_with_the_remedy_is_left_alone(story: Story, level: str) -> None:
    """Neither a warning nor a critical, root or not; nothing is changed."""
    check_left_alone(partial(story.build, sick=False), level)


@pytest.mark.rotating
@pytest.mark.parametrize(("control", "level"), once(CONTROLS))
def test_what_only_looks_like_trouble_is_left_alone(
    control: Callable[[], Program], level: str
) -> None:
    """Neither a warning nor a critical, and not a bit of the training is changed."""
    check_left_alone(control, level)
