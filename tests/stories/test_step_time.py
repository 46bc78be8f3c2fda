"""Steps that take longer than they have to are named with the phase; others are left alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.stories.stage import (
    ALARMS,
    Program,
    Story,
    at_each_level,
    check_left_alone,
    check_sick,
    name_of,
)
from tests.stories.step_time import CONTROLS, STORIES
from tests.workshop.played_time import play_time

pytestmark = pytest.mark.usefixtures("one_thread", "played")

LEVELS = ("light", "standard")


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes where a program sleeps, and nowhere else."""
    play_time(monkeypatch)


@pytest.mark.parametrize(("story", "level"), at_each_level(STORIES, LEVELS))
def test_what_takes_so_long_is_the_one_root_finding(story: Story, level: str) -> None:
    """Its kind, its place, its phase; nothing is changed."""
    check_sick(story, level)


@pytest.mark.rotating
@pytest.mark.parametrize("story", STORIES, ids=str)
def test_the_twin_with_the_remedy_is_left_alone(story: Story) -> None:
    """No alarm, and not an info of the kind."""
    check_left_alone(
        partial(story.build, sick=False),
        "light",
        lambda finding: finding.kind == story.kind or finding.severity in ALARMS,
    )


@pytest.mark.rotating
@pytest.mark.parametrize("control", CONTROLS, ids=name_of)
def test_what_takes_long_for_a_reason_is_left_alone(control: Callable[[], Program]) -> None:
    """No alarm, and no info."""
    check_left_alone(control, "light", lambda _: True)
