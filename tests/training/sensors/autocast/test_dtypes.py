"""Dtypes that autocast regions ask for."""

from __future__ import annotations

import torch
from typing_extensions import Self

from ampwatch.training.sensors.facts import AutocastSensor
from tests.training.bench import Bench, Heard


class Watched:
    """A sensor that is on, and what was known each time that it has said that facts changed."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.changes: list[list[str]] = []
        heard = Heard()
        heard.facts_changed = lambda _: self.changes.append(
            list(self.bench.context.autocast_dtypes)
        )
        self.bench.install(AutocastSensor(self.bench.context), heard)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.bench.remove()


def _region(dtype: torch.dtype, *, enabled: bool = True) -> None:
    with torch.autocast("cpu", dtype=dtype, enabled=enabled):
        pass


def test_each_dtype_is_reported_once_when_it_is_first_asked_for() -> None:
    """A region per step is not news; another dtype is."""
    with Watched() as watched:
        for dtype in (torch.float16, torch.float16, torch.bfloat16, torch.float16):
            _region(dtype)

    assert watched.changes == [["float16"], ["float16", "bfloat16"]]


def test_a_disabled_region_asks_for_nothing() -> None:
    """``enabled=False`` is how people protect an op."""
    with Watched() as watched:
        _region(torch.float16, enabled=False)

    assert watched.changes == []
