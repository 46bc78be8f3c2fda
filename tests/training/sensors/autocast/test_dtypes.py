"""Which dtypes autocast regions ask for."""

from __future__ import annotations

import warnings

import torch
from typing_extensions import Self

from ampwatch.guard import Guard
from ampwatch.training.sensors.autocast.dtypes import AutocastSensor


class Bench:
    """A sensor that is on, and what it has said."""

    def __init__(self) -> None:
        self.changes: list[list[str]] = []
        self.sensor = AutocastSensor(
            Guard("autocast"), lambda: self.changes.append(list(self.sensor.dtypes))
        )

    def __enter__(self) -> Self:
        self.sensor.install()
        return self

    def __exit__(self, *_: object) -> None:
        self.sensor.remove()


def _region(dtype: torch.dtype, *, enabled: bool = True) -> None:
    with torch.autocast("cpu", dtype=dtype, enabled=enabled):
        pass


def test_each_dtype_is_told_once_when_it_is_first_asked_for() -> None:
    """A region per step is not news; another dtype is."""
    with Bench() as bench:
        for dtype in (torch.float16, torch.float16, torch.bfloat16, torch.float16):
            _region(dtype)

    assert bench.changes == [["float16"], ["float16", "bfloat16"]]


def test_a_disabled_region_asks_for_nothing() -> None:
    """``enabled=False`` is how people protect an op."""
    with Bench() as bench:
        _region(torch.float16, enabled=False)

    assert bench.changes == []


def test_a_decorated_function_is_a_region_too() -> None:
    """``@torch.autocast(...)`` enters a region at each call."""

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward() -> None:
        pass

    with Bench() as bench:
        forward()

    assert bench.changes == [["bfloat16"]]


def test_the_old_spelling_is_heard_as_well() -> None:
    """``torch.cpu.amp.autocast`` derives from ``torch.autocast``."""
    with warnings.catch_warnings(), Bench() as bench:
        warnings.simplefilter("ignore")
        with torch.cpu.amp.autocast(dtype=torch.bfloat16):
            pass

    assert bench.changes == [["bfloat16"]]


def test_after_removal_nothing_is_heard() -> None:
    """The method is the original one again."""
    original = torch.autocast.__enter__
    with Bench() as bench:
        pass
    _region(torch.float16)

    assert bench.changes == []
    assert torch.autocast.__enter__ is original
