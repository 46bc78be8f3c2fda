"""Where values arrive some steps later, a failing training has the finding that it has on a host."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from ampwatch.diagnosis.escalation import FIRST_TRACES
from ampwatch.diagnosis.evidence.origins import OpTrace
from ampwatch.diagnosis.pipeline import Diagnosis
from ampwatch.training.iteration import governor
from tests.stories import backward, communication, forward, not_amp, small_numbers
from tests.stories.origins import ORIGINATE
from tests.stories.stage import (
    ALARMS,
    Program,
    Story,
    check_sick,
    name_of,
    ops,
    twins,
    watch,
)
from tests.training.sensors.late import BEHIND, pretend

pytestmark = [
    pytest.mark.filterwarnings("ignore:Detected call of:UserWarning"),
    pytest.mark.usefixtures("one_thread"),
]

PLAYS = (forward, small_numbers, backward, communication, not_amp)
FOLLOWED = ORIGINATE | {"nonfinite_input", "invalid_operation"}
STORIES = [
    story
    for play in PLAYS
    for story in play.STORIES
    if story.kind in FOLLOWED and "deep" in story.levels
]
CONTROLS = [control for play in PLAYS for control in getattr(play, "CONTROLS", ())]


@pytest.fixture(autouse=True)
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values arrive late; samples come in one piece."""
    pretend(monkeypatch)
    monkeypatch.setattr(governor, "WORST_SHARE", math.inf)


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[OpTrace]:
    """Findings about iterations whose ops were followed."""
    seen: list[OpTrace] = []
    observe = Diagnosis.observe

    def keep(diagnosis: Diagnosis, observation: Any) -> None:
        if isinstance(observation, OpTrace):
            seen.append(observation)
        observe(diagnosis, observation)

    monkeypatch.setattr(Diagnosis, "observe", keep)
    return seen


@pytest.mark.rotating
@pytest.mark.parametrize("story", STORIES, ids=str)
def test_the_root_is_the_one_that_it_is_on_a_host(story: Story) -> None:
    """Kind, place, phase and op are those of a host; not a bit of the training is changed."""
    _, monitor = check_sick(story, "deep")

    assert not story.op or ops(monitor.findings, story.kind) == [story.op]
    assert "switched off" not in monitor.report()
    assert "were not followed" not in monitor.report()


@pytest.mark.rotating
@pytest.mark.parametrize("build", [*twins(STORIES), *CONTROLS], ids=name_of)
def test_twins_with_the_remedy_and_what_only_looks_like_trouble_are_left_alone(
    build: Callable[[], Program],
) -> None:
    """With every iteration followed."""
    _, monitor = watch(build, "deep")

    assert [(f.kind, f.where) for f in monitor.findings if f.severity in ALARMS] == []
    assert "switched off" not in monitor.report()


def test_a_burst_ends_and_an_incident_stays_one_finding(
    traces: list[OpTrace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the op is named only some steps after it was traced, and traced until then."""
    monkeypatch.setattr(governor, "OPENING", 0)
    story = next(s for s in forward.STORIES if s.kind in ORIGINATE and "standard" in s.levels)
    program, monitor = watch(partial(story.build, sick=True), "standard", sample_every=10_000)

    named = [f for f in monitor.findings if f.kind == story.kind]
    assert len(named) == 1
    assert named[0].count <= program.steps
    failed = [trace.step for trace in traces if trace.origins and not trace.is_replay]
    assert failed == sorted(set(failed))
    assert len(failed) <= FIRST_TRACES + BEHIND + 1
