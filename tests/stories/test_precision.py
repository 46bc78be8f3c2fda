"""Gains that mixed precision misses are named, once, in the right place, and nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.stories.precision import CONTROLS, STORIES
from tests.stories.stage import (
    ALARMS,
    Program,
    Story,
    alarms,
    at_each_level,
    bare_digest,
    check_left_alone,
    once,
    watch,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Detected call of:UserWarning"),
    pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda':UserWarning"),
    pytest.mark.filterwarnings("ignore:CUDA is not available:UserWarning"),
    pytest.mark.usefixtures("one_thread"),
]

OF_THE_MACHINE = "cpu_isa_missing"
"""Depends on the CPU that the tests run on."""


@pytest.mark.parametrize(("story", "level"), at_each_level(STORIES))
def test_what_is_not_gained_is_the_one_finding_of_its_kind(story: Story, level: str) -> None:
    """The finding has kind, place and phase, at most an alarm of its kind; nothing is changed."""
    program, monitor = watch(partial(story.build, sick=True), level)
    found = [(f.kind, f.where, f.phase) for f in monitor.findings if f.root]
    expected = (story.kind, story.where, story.phase)

    assert [place for place in found if place[0] == story.kind] == [expected]
    assert set(alarms(monitor.findings)) <= {expected}
    assert program.digest() == bare_digest(story.build, sick=True)


@pytest.mark.rotating
@pytest.mark.parametrize(("story", "level"), once(STORIES))
def test_the_twin_with_the_remedy_does_not_have_it(story: Story, level: str) -> None:
    """Not even as an info."""
    _, monitor = watch(partial(story.build, sick=False), level)

    assert story.kind not in {f.kind for f in monitor.findings}
    assert [(f.kind, f.where) for f in monitor.findings if f.severity in ALARMS] == []


@pytest.mark.rotating
@pytest.mark.parametrize(("control", "level"), once(CONTROLS))
def test_mixed_precision_as_it_is_documented_is_left_alone(
    control: Callable[[], Program], level: str
) -> None:
    """No finding at all but what depends on the machine, and not a bit is changed."""
    check_left_alone(control, level, lambda finding: finding.kind != OF_THE_MACHINE)
