"""The autocast regions that every thread is in."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.amp import custom_fwd

from ampwatch.training.hooks.regions import AutocastRegion, Regions
from tests.training.bench import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def regions() -> Iterator[Regions]:
    bench, made = Bench(), Regions()
    bench.install(made)
    yield made
    bench.remove()


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
    bench, regions = Bench(), Regions()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        bench.install(regions)
        regions.update()
        before = list(regions.here())
        with torch.autocast("cpu", enabled=False):
            regions.update()
            inside = list(regions.here())
        after = list(regions.here())
    regions.update()
    left = list(regions.here())
    bench.remove()

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


def test_threads_have_regions_of_their_own(regions: Regions) -> None:
    """A region of another thread is known as one, while it lasts and if it is enabled."""
    seen: list[Any] = []
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        seen.append(regions.elsewhere("cpu"))
        with torch.autocast("cpu", dtype=torch.float16):
            inside.set()
            done.wait(60)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        thread = threading.Thread(target=other)
        thread.start()
        inside.wait(60)
        while_inside = regions.elsewhere("cpu"), regions.elsewhere("cuda"), list(regions.here())
        done.set()
        thread.join()
        afterwards = regions.elsewhere("cpu")
        with torch.autocast("cpu", enabled=False):
            thread = threading.Thread(target=lambda: seen.append(regions.elsewhere("cpu")))
            thread.start()
            thread.join()

    assert seen == [BF16, None]
    assert while_inside == (AutocastRegion("cpu", "float16", True, False), None, [BF16])  # noqa: FBT003 - fields
    assert afterwards is None


def test_the_region_of_a_custom_function_is_told_from_the_users_own(regions: Regions) -> None:
    """Both disable autocast."""
    seen = []

    class Function(torch.autograd.Function):
        @staticmethod
        @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            seen.append(regions.here()[-1])
            return x * 2

    with torch.autocast("cpu", dtype=torch.bfloat16):
        Function.apply(torch.ones(2))
        with torch.autocast("cpu", enabled=False):
            seen.append(regions.here()[-1])

    assert [(r.enabled, r.by_function) for r in seen] == [(False, True), (False, False)]
