"""Memory that grows until there is none left is named with what holds it; other growth is left alone."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable

import pytest

from ampwatch.training.devices import MemoryUse
from ampwatch.training.sensors.memory import growth
from tests.stories.memory import CONTROLS, STORIES
from tests.stories.stage import (
    Program,
    Story,
    at_each_level,
    check_left_alone,
    check_sick,
    name_of,
    twins,
)

pytestmark = pytest.mark.usefixtures("one_thread")

LEVELS = ("light", "standard")


class Allocated(ctypes.Structure):
    """``struct mallinfo2`` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is what is allocated: the resident set has holes, left by the tests before.

    And their garbage is gone: collected in the middle of a training, it makes the memory fall.
    """
    gc.collect()
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        pytest.skip("needs glibc 2.33")
    library.mallinfo2.restype = Allocated

    def read() -> MemoryUse:
        info = library.mallinfo2()
        return MemoryUse(info.uordblks + info.hblkhd, 2**40)

    monkeypatch.setattr(growth, "host_memory", read)


@pytest.mark.parametrize(("story", "level"), at_each_level(STORIES, LEVELS))
def test_what_keeps_memory_is_the_one_root_finding(story: Story, level: str) -> None:
    """Its kind, its place, its phase; nothing is changed."""
    check_sick(story, level)


@pytest.mark.rotating
@pytest.mark.parametrize("build", [*twins(STORIES), *CONTROLS], ids=name_of)
def test_the_twin_with_the_remedy_and_growth_that_ends_are_left_alone(
    build: Callable[[], Program],
) -> None:
    """No finding of the kind, and no alarm."""
    check_left_alone(build, "light")
