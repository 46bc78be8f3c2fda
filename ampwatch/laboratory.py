"""The door to the laboratory, ``ampwatch.lab``: nothing else imports it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

VERBS = ("diff", "errors", "plan")
"""Its verbs on the command line: ``ampwatch lab <verb>``."""


def load(module: str) -> Any:
    """Return a module of the laboratory, by its name below ``ampwatch.lab``, where it is asked for."""
    return import_module(f"ampwatch.lab.{module}")
