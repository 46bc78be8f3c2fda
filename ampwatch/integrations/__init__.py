"""Callbacks for frameworks: one module each, which imports its framework and is loaded on first use.

``ampwatch.integrations.transformers.AmpwatchCallback()`` needs no import but that of ``ampwatch``.
Everything here uses what ampwatch offers to everybody; nothing of ampwatch uses this.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["accelerate", "lightning", "transformers"]


def __getattr__(name: str) -> ModuleType:
    """Load the module of a framework."""
    if name not in __all__:
        msg = (
            f"module 'ampwatch.integrations' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
        raise AttributeError(msg)
    return import_module(f"ampwatch.integrations.{name}")


def __dir__() -> list[str]:
    """List the modules, loaded or not."""
    return list(__all__)
