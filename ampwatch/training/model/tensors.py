"""Tensors in the inputs and outputs of modules, parameters in the flat ones of FSDP, and gradients that are not finite."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch

from ampwatch.training.devices import HOST
from ampwatch.training.model.names import canonical
from ampwatch.training.private import FLAT_NAMES, FLAT_SHARDS, FLAT_SIZE, IS_FLATTENED
from ampwatch.training.transfer.readback import host_scalar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor


def parts_of(name: str, parameter: Tensor, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of the model that a parameter consists of, each with its own elements.

    Args:
        name: Qualified name of the parameter.
        parameter: The parameter.
        tensor: The parameter itself, its gradient, or another tensor that is laid out alike.

    Yields:
        Name and tensor as they are given; of a flat parameter the name of each parameter that has
        elements in this process's shard, and a view of these.

    Cost:
        0.2 us for a parameter that is not flat.
    """
    # What FSDP itself goes by; in the class of no other parameter.
    shards = getattr(parameter, FLAT_SHARDS, None)
    # While it is gathered it is of another size.
    if not shards or tensor.shape != getattr(parameter, FLAT_SIZE, None):
        yield name, tensor
        return
    flat = tensor.detach()
    for inner, shard in zip(names_of(name, parameter), shards, strict=True):
        if shard.in_shard:
            begin = shard.offset_in_shard
            yield inner, flat[begin : begin + shard.numel_in_shard]


def is_in_flat(parameter: Tensor) -> bool:
    """Whether a parameter is flat, or one of the model that lies in a flat one."""
    return bool(getattr(parameter, IS_FLATTENED, False))


def names_of(name: str, parameter: Tensor) -> list[str]:
    """Return the names of the parameters that a parameter consists of, wherever their elements are."""
    names = getattr(parameter, FLAT_NAMES, None)
    if not names:
        return [name]
    prefix = name.rpartition(".")[0]
    return [canonical(f"{prefix}.{inner}".lstrip(".")) for inner in names]


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


def all_tensors_in(values: Iterable[object]) -> list[torch.Tensor]:
    """Return the tensors among values, and those in lists and tuples at any depth."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += all_tensors_in(value)
    return found


def num_nonfinite(gradient: Tensor | None) -> int:
    """Return how many elements of a gradient in host memory are not finite; 0 of any other. No sync."""
    if gradient is None or gradient.device.type != HOST:
        return 0
    with torch.no_grad():
        values = gradient.coalesce().values() if gradient.is_sparse else gradient.detach()
        return int(host_scalar((~torch.isfinite(values)).sum()))
