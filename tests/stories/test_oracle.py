"""Stories are true: each goes wrong as it says, and its twin does not, with no ampwatch at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.stories import backward, communication, forward, fp8, not_amp, rounding, small_numbers
from tests.stories.births import BORN, Birth, Births
from tests.stories.stage import seed

if TYPE_CHECKING:
    from tests.stories.stage import Program, Story

STORIES = [
    story
    for programs in (forward, small_numbers, backward, rounding, fp8, communication, not_amp)
    for story in programs.STORIES
]

pytestmark = [
    pytest.mark.filterwarnings("ignore:Detected call of:UserWarning"),
    pytest.mark.usefixtures("one_thread"),
]


def births(story: Story, *, sick: bool) -> tuple[Program, list[Birth]]:
    """Run a program without ampwatch; return it, and its births in their order."""
    seed()
    program = story.build(sick=sick)
    with Births(program.models) as reference:
        program.run()
    return program, list(dict.fromkeys(reference.seen))


@pytest.mark.parametrize("story", STORIES, ids=str)
def test_a_story_goes_wrong_where_it_says_and_its_twin_does_not(story: Story) -> None:
    """By what the program itself can see, and by the first op that makes a number infinite."""
    sick, of_sick = births(story, sick=True)
    well, of_well = births(story, sick=False)

    assert sick.shows is not None
    assert well.shows is not None
    assert (sick.shows(), well.shows()) == (True, False)
    if story.kind in BORN:
        if story.kind == "masked_row_nan":
            # Minus infinity is what a mask is made of; NaN is the failure.
            of_sick = [birth for birth in of_sick if "softmax" in birth.op]
        # What the twin has as well is meant: the logarithm of a mask.
        first = next(birth for birth in of_sick if birth not in of_well)
        assert first.op == story.op
        if story.phase in {"forward", "eval"}:
            assert first == Birth(story.where, story.op, story.phase)
