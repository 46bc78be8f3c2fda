"""Results of a probe. No torch here, and no Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from typing import Any

Load = Callable[[str], Any]
"""Imports a module by name, as ``importlib.import_module`` does."""

Version = Callable[[str], str | None]
"""Returns the version of an installed distribution, as ``installed_version`` does."""


class State(str, Enum):
    """State of a capability.

    ``OK``: it works. ``ABSENT``: this machine or environment does not have it, and
    nothing is wrong with that. ``PROBLEM``: it ought to work, and does not.
    """

    OK = "ok"
    ABSENT = "absent"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """Result for one capability."""

    name: str  # the capability
    state: State  # how it stands
    why: str  # one sentence: what was found
    remedy: str = ""  # what to do to have it; empty if there is nothing to do
    blocks: bool = False  # without it ampwatch cannot do its main job on this machine


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, ``None`` if there is none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
