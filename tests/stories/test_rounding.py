"""Values that single ops round away are named with their line, once.

That their twins are left alone is tested with those of all stories.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.stories import fp8_casts, rounding_ops
from tests.stories.stage import ALARMS, bare_digest, watch

if TYPE_CHECKING:
    from tests.stories.stage import Story

STORIES = [*rounding_ops.STORIES, *fp8_casts.STORIES]
KINDS = {story.kind for story in STORIES}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("story", STORIES, ids=str)
def test_what_is_lost_is_one_root_finding(story: Story) -> None:
    """The finding has kind, place, phase and a line of this folder; nothing is changed."""
    program, monitor = watch(partial(story.build, sick=True), "deep")
    found = [f for f in monitor.findings if f.kind == story.kind and f.severity in ALARMS]
    others = [f.kind for f in monitor.findings if f.kind in KINDS and f.kind != story.kind]

    assert [(f.where, f.phase, f.root) for f in found] == [(story.where, story.phase, True)]
    assert others == []
    assert "/tests/stories/" in found[0].source
    assert program.digest() == bare_digest(story.build, sick=True)
