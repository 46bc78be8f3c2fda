"""Stories are true: each goes wrong as it says, and its twin does not, with no ampwatch at all."""

from __future__ import annotations

import pytest

from tests.stories.collection import STORIES as ALL
from tests.stories.origins import ORIGINATE, Origin, Origins
from tests.stories.stage import Program, Story, seed

SHOWN = {
    f"tests.stories.{name}"
    for name in (
        "autocast",
        "backward",
        "communication",
        "forward",
        "fp8",
        "misuse",
        "not_amp",
        "rounding",
        "scale_more",
        "small_numbers",
    )
}
"""Modules whose programs say themselves how their failure can be seen."""

STORIES = [story for story in ALL if story.build.__module__ in SHOWN]

pytestmark = [
    # They run without ampwatch, which no change of it can break.
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore:Detected call of:UserWarning"),
    pytest.mark.usefixtures("one_thread"),
]


def origins(story: Story, *, sick: bool) -> tuple[Program, list[Origin]]:
    """Run a program without ampwatch; return it, and its origins in their order if it has to have any."""
    seed()
    program = story.build(sick=sick)
    if story.kind not in ORIGINATE:
        program.run()
        return program, []
    with Origins(program.models) as reference:
        program.run()
    return program, list(dict.fromkeys(reference.seen))


@pytest.mark.parametrize("story", STORIES, ids=str)
def test_a_story_goes_wrong_where_it_says_and_its_twin_does_not(story: Story) -> None:
    """By what the program itself can see, and by the first op that makes a number infinite."""
    sick, of_sick = origins(story, sick=True)
    well, of_well = origins(story, sick=False)

    assert sick.shows is not None
    assert well.shows is not None
    assert (sick.shows(sick), well.shows(well)) == (True, False)
    if story.kind in ORIGINATE:
        if story.kind == "masked_row_nan":
            # Minus infinity is what a mask is made of; NaN is the failure.
            of_sick = [origin for origin in of_sick if "softmax" in origin.op]
        # What the twin has as well is meant: the logarithm of a mask.
        first = next(origin for origin in of_sick if origin not in of_well)
        assert first.op == story.op
        if story.phase in {"forward", "eval"}:
            assert first == Origin(story.where, story.op, story.phase)
