"""The autocast regions that every thread is in."""

from __future__ import annotations

import pytest
import torch

from ampwatch.training.hooks.regions import AutocastRegion, Regions
from tests.training.bench import Bench


@pytest.fixture
def regions() -> Regions:
    made = Regions()
    Bench().install(made)
    return made


BF16 = AutocastRegion("cpu", "bfloat16", enabled=True, by_function=False)
OFF = AutocastRegion("cpu", "bfloat16", enabled=False, by_function=False)


def test_regions_are_followed_as_they_are_entered_and_left(regions: Regions) -> None:
    """The innermost is last; a decorator enters one at each call."""

    @torch.autocast("cpu", dtype=torch.float16)
    def decorated() -> list[AutocastRegion]:
        return list(regions.here())

    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.autocast("cpu", enabled=False):
            inside = list(regions.here())
        outside = list(regions.here())

    assert inside == [BF16, OFF]
    assert outside == [BF16]
    assert decorated() == [AutocastRegion("cpu", "float16", enabled=True, by_function=False)]
    assert list(regions.here()) == []


def test_an_exception_leaves_a_region(regions: Regions) -> None:
    """The user's ``with`` leaves the region in PyTorch, and here."""
    with pytest.raises(ZeroDivisionError), torch.autocast("cpu", dtype=torch.bfloat16):
        _ = 1 // 0

    assert list(regions.here()) == []


def test_a_region_that_nobody_saw_being_entered_is_known_once_asked_for() -> None:
    """The whole program may run in one, ampwatch included; Python leaves it without us, too."""
    regions = Regions()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        Bench().install(regions)
        regions.update()
        before = list(regions.here())
        with torch.autocast("cpu", enabled=False):
            regions.update()
            inside = list(regions.here())
        after = list(regions.here())
    regions.update()
    left = list(regions.here())

    assert before == after == [BF16]
    assert inside == [BF16, OFF]
    assert left == []


def test_autocast_that_is_switched_on_by_hand_is_known_once_asked_for(regions: Regions) -> None:
    """Without a context manager; beside regions that are seen it is not asked for."""
    torch.set_autocast_dtype("cpu", torch.float16)
    torch.set_autocast_enabled("cpu", True)  # noqa: FBT003 - as PyTorch has it
    try:
        regions.update()
        on = list(regions.here())
    finally:
        torch.set_autocast_enabled("cpu", False)  # noqa: FBT003 - as PyTorch has it
        torch.set_autocast_dtype("cpu", torch.bfloat16)
    regions.update()

    assert on == [AutocastRegion("cpu", "float16", enabled=True, by_function=False)]
    assert list(regions.here()) == []
