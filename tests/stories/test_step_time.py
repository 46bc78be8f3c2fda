"""Steps that take longer than they have to are named with the phase; others are left alone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.stories.stage import ALARMS, alarms, at_each_level, bare_digest, watch
from tests.stories.step_time import CONTROLS, STORIES
from tests.workshop.played_time import play_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.stories.stage import Program, Story

pytestmark = pytest.mark.usefixtures("one_thread", "played")

LEVELS = ("light", "standard")


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes where a program sleeps, and nowhere else."""
    play_time(monkeypatch)


@pytest.mark.parametrize(("story", "level"), at_each_level(STORIES, LEVELS))
def test_what_takes_so_long_is_the_one_root_finding(story: Story, level: str) -> None:
    """Its kind, its place, its phase; nothing is changed."""
    program, monitor = watch(partial(story.build, sick=True), level)

    assert alarms(monitor.findings) == [(story.kind, story.where, story.phase)]
    assert program.digest() == bare_digest(story.build, sick=True)


@pytest.mark.rotating
@pytest.mark.parametrize("story", STORIES, ids=str)
def test_the_twin_with_the_remedy_is_left_alone(story: Story) -> None:
    """No alarm, and not an info of the kind."""
    program, monitor = watch(partial(story.build, sick=False), "light")

    assert [
        (f.kind, f.summary)
        for f in monitor.findings
        if f.kind == story.kind or f.severity in ALARMS
    ] == []
    assert program.digest() == bare_digest(story.build, sick=False)


@pytest.mark.rotating
@pytest.mark.parametrize("control", CONTROLS, ids=lambda build: build.__name__)
def test_what_takes_long_for_a_reason_is_left_alone(control: Callable[[], Program]) -> None:
    """No alarm, and no info."""
    program, monitor = watch(control, "light")

    assert [(f.kind, f.summary) for f in monitor.findings] == []
    assert program.digest() == bare_digest(control)
