"""Causes of a failure are named, once, in the right place; the healthy twin is left alone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.stories import fp8_casts, outputs, rounding_ops
from tests.stories.collection import CONTROLS, STORIES
from tests.stories.stage import ALARMS, alarms, at_each_level, bare_digest, once, ops, watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.stories.stage import Program, Story

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
    program, monitor = watch(partial(story.build, sick=True), level)

    assert alarms(monitor.findings) == [(story.kind, story.where, story.phase)]
    assert all(f.root or f.caused_by for f in monitor.findings)
    assert not story.op or ops(monitor.findings, story.kind) == [story.op]
    if story in outputs.STORIES:
        (finding,) = [f for f in monitor.findings if f.kind == "headroom_low"]
        assert finding.first_step <= program.overflowed_at - 5
    if story in WITH_A_LINE:
        (finding,) = [f for f in monitor.findings if f.kind == story.kind and f.severity in ALARMS]
        assert "/tests/stories/" in finding.source
    assert program.digest() == bare_digest(story.build, sick=True)


@pytest.mark.rotating
@pytest.mark.parametrize(("story", "level"), once(STORIES))
def test_the_twin_with_the_remedy_is_left_alone(story: Story, level: str) -> None:
    """Neither a warning nor a critical, root or not; nothing is changed."""
    program, monitor = watch(partial(story.build, sick=False), level)

    assert [(f.kind, f.where) for f in monitor.findings if f.severity in ALARMS] == []
    assert program.digest() == bare_digest(story.build, sick=False)


@pytest.mark.rotating
@pytest.mark.parametrize(("control", "level"), once(CONTROLS))
def test_what_only_looks_like_trouble_is_left_alone(
    control: Callable[[], Program], level: str
) -> None:
    """Neither a warning nor a critical, and not a bit of the training is changed."""
    program, monitor = watch(control, level)

    assert [(f.kind, f.where, f.summary) for f in monitor.findings if f.severity in ALARMS] == []
    assert program.digest() == bare_digest(control)
