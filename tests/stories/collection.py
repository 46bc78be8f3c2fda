"""All programs there are, from all modules beside this one."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import tests.stories
from tests.stories.stage import Program, Story

APART = (
    "collection",
    "stage",
    "precision",
    "memory",
    "plans",
    "step_time",
    "straggler",
)
"""Modules that hold none, and those whose programs have tests of their own, which ask for more."""

_MODULES = [
    import_module(f"tests.stories.{module.name}")
    for module in iter_modules(tests.stories.__path__)
    if not module.name.startswith("test_") and module.name not in APART
]


def _all(name: str) -> list[Any]:
    return [thing for module in _MODULES for thing in getattr(module, name, ())]


STORIES: list[Story] = _all("STORIES")
CONTROLS: list[Callable[[], Program]] = _all("CONTROLS")
ERRORS: list[Story] = _all("ERRORS")
"""Programs that raise; their twins do not."""
