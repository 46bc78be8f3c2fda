"""Trainings that leave their precision plan are named with the layer; those that hold it are left alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

import ampwatch
from ampwatch import lab
from ampwatch.wire.records import Finding
from tests.stories.plans import ASKED_AT, CONTROLS, STORIES
from tests.stories.stage import Program, Story, at_each_level, bare_digest, seed

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.usefixtures("one_thread", "samples_in_one_piece"),
]


def _watched(
    build: Callable[[], Program], level: str = "standard", **arguments: object
) -> tuple[Program, list[Finding]]:
    """Run a program that asks for a plan once; return what was found of it."""
    seed()
    program = build()
    inner = program.iterate

    def iterate(step: int) -> object:
        if step == ASKED_AT:
            plan = lab.plan(watch, **arguments)
            assert plan.layers
        return inner(step)

    program.iterate = iterate
    (model,) = program.models
    with ampwatch.monitor(model, level=level, serve=False, lab=True, **program.settings) as watch:
        program.run()
    return program, [f for f in watch.findings if f.kind == "plan_left"]


@pytest.mark.parametrize(("story", "level"), at_each_level(STORIES))
def test_what_leaves_its_plan_is_told_with_the_layer(story: Story, level: str) -> None:
    """Its place and its product, since a step after the plan; nothing is changed."""
    build = partial(story.build, sick=True)
    program, findings = _watched(build, level)

    (finding,) = findings
    assert (finding.where, finding.phase) == (story.where, story.phase)
    assert finding.root
    assert ASKED_AT < finding.first_step < finding.last_step
    assert finding.evidence["planned_step"] == ASKED_AT - 1
    assert finding.evidence["flushed_share"] > 0.2
    assert program.digest() == bare_digest(story.build, sick=True)


@pytest.mark.parametrize("story", STORIES, ids=str)
def test_the_twin_with_the_remedy_holds_its_plan(story: Story) -> None:
    """No finding of the kind, not even an info."""
    program, findings = _watched(partial(story.build, sick=False))

    assert findings == []
    assert program.digest() == bare_digest(story.build, sick=False)


@pytest.mark.parametrize("limit", [15.0, 20.0, 40.0])
@pytest.mark.parametrize("control", CONTROLS, ids=lambda build: build.__name__)
def test_what_only_changes_is_left_alone(control: Callable[[], Program], limit: float) -> None:
    """With plans in 4, 8 and 16 bits."""
    _, findings = _watched(control, limit=limit)

    assert [f.summary for f in findings] == []
