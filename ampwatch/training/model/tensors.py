"""Tensors in the inputs and outputs of modules."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DEPTH = 4
"""Levels of nesting in which tensors are searched for in the output of a module."""

MAX_TENSORS = 16
"""Tensors measured in one output."""


def tensors_in(output: Any) -> list[torch.Tensor]:
    """Return the first ``MAX_TENSORS`` tensors in the output of a module.

    Searches tuples, lists, mappings (``ModelOutput`` is one) and dataclasses.
    """
    found: list[torch.Tensor] = []
    _collect(output, found, MAX_DEPTH)
    return found[:MAX_TENSORS]


def _collect(output: Any, found: list[torch.Tensor], depth: int) -> None:
    if isinstance(output, torch.Tensor):
        found.append(output)
    elif depth and len(found) < MAX_TENSORS:
        for part in _parts(output):
            _collect(part, found, depth - 1)


def _parts(output: Any) -> Iterator[Any]:
    if isinstance(output, (tuple, list)):
        yield from output
    elif isinstance(output, dict):
        yield from output.values()
    elif is_dataclass(output):
        yield from (getattr(output, field.name, None) for field in fields(output))
