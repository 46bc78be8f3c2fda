"""More programs of each kind around the loss scale, its steps, its methods and autocast.

Each is first shown to fail, and its twin not to, without ampwatch.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import pytest

import ampwatch
from ampwatch.training.iteration import governor
from ampwatch.training.model import machine
from tests.stories import autocast, bookkeeping, misuse, scale_more
from tests.stories.stage import ALARMS, LEVELS, alarms, bare_digest, seed, watch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.training.monitor import Monitor
    from ampwatch.wire.records import Finding
    from tests.stories.stage import Program, Story

STORIES = [
    *scale_more.STORIES,
    *bookkeeping.STORIES,
    *misuse.STORIES,
    *autocast.STORIES,
    *autocast.COMPILED,
]
ERRORS = misuse.ERRORS

# torch says so where the first step of a training is skipped; that is as it should be.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Detected call of:UserWarning"),
    pytest.mark.usefixtures("one_thread"),
]

at_each_level = pytest.mark.parametrize("level", LEVELS)
of_each_story = pytest.mark.parametrize("story", STORIES, ids=str)
of_each_error = pytest.mark.parametrize("story", ERRORS, ids=str)


@pytest.fixture(autouse=True)
def samples_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many pieces a sample is split into depends on how busy this machine is."""
    monkeypatch.setattr(governor, "WORST_SHARE", math.inf)


def ops(findings: Sequence[Finding], kind: str) -> list[str]:
    """Return the op of each root of a kind."""
    return [f.op for f in findings if f.root and f.kind == kind]


@of_each_story
def test_a_story_fails_as_it_says_and_its_twin_does_not(story: Story) -> None:
    """Nobody watches; what a user could see is asked for."""
    shown = []
    for sick in (True, False):
        seed()
        program = story.build(sick=sick)
        program.run()
        assert program.shows is not None
        shown.append(program.shows())

    assert shown == [True, False]


@at_each_level
@of_each_story
def test_what_is_wrong_is_the_one_root_finding(story: Story, level: str) -> None:
    """One root that is more than an info: its kind, its place, its phase; nothing is changed."""
    program, monitor = watch(partial(story.build, sick=True), level)

    assert alarms(monitor.findings) == [(story.kind, story.where, story.phase)]
    assert all(f.root or f.caused_by for f in monitor.findings)
    assert not story.op or ops(monitor.findings, story.kind) == [story.op]
    assert program.digest() == bare_digest(story.build, sick=True)


@at_each_level
@of_each_story
def test_the_twin_with_the_remedy_is_left_alone(story: Story, level: str) -> None:
    """Neither a warning nor a critical, root or not."""
    program, monitor = watch(partial(story.build, sick=False), level)

    assert [(f.kind, f.where) for f in monitor.findings if f.severity in ALARMS] == []
    assert program.digest() == bare_digest(story.build, sick=False)


def fail(story: Story, level: str | None) -> tuple[Program, Monitor | None, Exception]:
    """Run a program that raises, watched if a level is given."""
    seed()
    program = story.build(sick=True)
    watched = program.models[0] if len(program.models) == 1 else program.models
    monitor = None
    try:
        if level is None:
            program.run()
        else:
            with ampwatch.monitor(watched, program.scaler, level=level, serve=False) as monitor:
                program.run()
    except (RuntimeError, ValueError, AssertionError) as error:
        return program, monitor, error
    raise LookupError(story)


@at_each_level
@of_each_error
def test_an_exception_is_explained_and_reaches_the_user_as_it_is(story: Story, level: str) -> None:
    """The same type and text as without ampwatch; one finding that says where it came from."""
    bare, _, expected = fail(story, None)
    program, monitor, error = fail(story, level)

    assert monitor is not None
    assert (type(error), str(error)) == (type(expected), str(expected))
    assert alarms(monitor.findings) == [("api_error", story.where, story.phase)]
    assert ops(monitor.findings, "api_error") == [story.op]
    assert program.digest() == bare.digest()


@at_each_level
@of_each_error
def test_the_twin_of_an_exception_is_left_alone(story: Story, level: str) -> None:
    """It ends, and there is nothing to say."""
    program, monitor = watch(partial(story.build, sick=False), level)

    assert len(program.trace) == program.steps
    assert [(f.kind, f.where) for f in monitor.findings if f.severity in ALARMS] == []


@at_each_level
@pytest.mark.parametrize("story", autocast.OF_THE_MACHINE, ids=str)
@pytest.mark.parametrize("sick", [True, False])
def test_a_dtype_without_instructions_is_an_info(
    story: Story, level: str, *, sick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU that has none: only where autocast asks for the dtype."""
    monkeypatch.setattr(machine, "cpu_dtypes", lambda _=None: frozenset())

    program, monitor = watch(partial(story.build, sick=sick), level)

    found = [
        (f.kind, f.where, f.phase, f.severity) for f in monitor.findings if f.kind == story.kind
    ]
    assert found == ([(story.kind, story.where, story.phase, "info")] if sick else [])
    assert alarms(monitor.findings) == []
    assert program.digest() == bare_digest(story.build, sick=sick)
