"""Causes of a failure are named, once, in the right place; the healthy twin is left alone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest

from tests.stories import outputs
from tests.stories.collection import CONTROLS, STORIES
from tests.stories.stage import ALARMS, LEVELS, alarms, bare_digest, ops, watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.stories.stage import Program, Story

# torch says so where the first step of a training is skipped; that is as it should be.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Detected call of:UserWarning"),
    pytest.mark.usefixtures("one_thread", "samples_in_one_piece"),
]


def in_turns_of_a_kind(stories: Iterable[Story]) -> list[Any]:
    """Return stories, each at one level, so that each kind is found at both; at both, where it has one story."""
    of_kinds: dict[str, list[Story]] = {}
    for story in stories:
        of_kinds.setdefault(story.kind, []).append(story)
    return [
        pytest.param(story, level, id=f"{story}-{level}")
        for alike in of_kinds.values()
        for i, story in enumerate(alike)
        for level in (story.levels if len(alike) == 1 else (story.levels * 2)[i % 2 :][:1])
    ]


def in_turns(programs: Iterable[Any]) -> list[Any]:
    """Return programs, each at one level, by its name: there are many, and most would be healthy at both."""
    named = [(one, getattr(one, "__name__", str(one))) for one in programs]
    levels = [LEVELS[crc32(name.encode()) % len(LEVELS)] for _, name in named]
    return [
        pytest.param(one, level, id=f"{name}-{level}")
        for (one, name), level in zip(named, levels, strict=True)
    ]


def test_each_kind_is_found_at_each_level_at_which_it_can_be() -> None:
    """Whatever order the stories stand in."""
    able = {(story.kind, level) for story in STORIES for level in story.levels}
    found = {
        (story.kind, level) for story, level in (one.values for one in in_turns_of_a_kind(STORIES))
    }

    assert found == able


@pytest.mark.parametrize(("story", "level"), in_turns_of_a_kind(STORIES))
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
    assert program.digest() == bare_digest(story.build, sick=True)


@pytest.mark.parametrize(("story", "level"), in_turns(STORIES))
def test_the_twin_with_the_remedy_is_left_alone(story: Story, level: str) -> None:
    """Neither a warning nor a critical, root or not; nothing is changed."""
    program, monitor = watch(partial(story.build, sick=False), level)

    assert [(f.kind, f.where) for f in monitor.findings if f.severity in ALARMS] == []
    assert program.digest() == bare_digest(story.build, sick=False)


@pytest.mark.parametrize(("control", "level"), in_turns(CONTROLS))
def test_what_only_looks_like_trouble_is_left_alone(
    control: Callable[[], Program], level: str
) -> None:
    """Neither a warning nor a critical, and not a bit of the training is changed."""
    program, monitor = watch(control, level)

    assert [(f.kind, f.where, f.summary) for f in monitor.findings if f.severity in ALARMS] == []
    assert program.digest() == bare_digest(control)
