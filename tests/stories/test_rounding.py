"""What single ops round away is named, once, in the right place; its healthy twin is left alone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.stories import fp8_casts, rounding_ops
from tests.stories.rounding_controls import CONTROLS
from tests.stories.stage import ALARMS, bare_digest, watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.stories.stage import Program, Story

STORIES = [*rounding_ops.STORIES, *fp8_casts.STORIES]
KINDS = {story.kind for story in STORIES}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("story", STORIES, ids=str)
def test_what_is_lost_is_one_root_finding(story: Story) -> None:
    """Its kind, its place, its phase and a line of this folder; nothing is changed."""
    program, monitor = watch(partial(story.build, sick=True), "deep")
    found = [f for f in monitor.findings if f.kind == story.kind and f.severity in ALARMS]
    others = [f.kind for f in monitor.findings if f.kind in KINDS and f.kind != story.kind]

    assert [(f.where, f.phase, f.root) for f in found] == [(story.where, story.phase, True)]
    assert others == []
    assert "/tests/stories/" in found[0].source
    assert program.digest() == bare_digest(story.build, sick=True)


@pytest.mark.parametrize("story", STORIES, ids=str)
def test_the_twin_with_the_remedy_is_left_alone(story: Story) -> None:
    """Neither a warning nor a critical, root or not."""
    _, monitor = watch(partial(story.build, sick=False), "deep")

    assert [(f.kind, f.where) for f in monitor.findings if f.severity in ALARMS] == []


@pytest.mark.parametrize("control", CONTROLS, ids=lambda build: build.__name__)
def test_what_only_looks_like_rounding_is_left_alone(control: Callable[[], Program]) -> None:
    """Nothing of these kinds that is more than an info, and not a bit is changed."""
    program, monitor = watch(control, "deep")

    assert [(f.kind, f.where, f.summary) for f in monitor.findings if f.severity in ALARMS] == []
    assert program.digest() == bare_digest(control)
