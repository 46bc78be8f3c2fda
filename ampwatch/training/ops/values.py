"""Tensors as sensors of single ops need them: whether they can be read, and parts of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from ampwatch.numerics.units.ops import Phase
from ampwatch.training.kernels.admission import is_ordinary, is_there
from ampwatch.training.kernels.dtypes import FLOATS
from ampwatch.training.ops.operands import is_dense

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ampwatch.training.ops.events import OpPlace


def is_plain(value: object) -> bool:
    """Whether ``value`` is an ordinary dense tensor that holds something, and holds it already."""
    return is_ordinary(value) and is_dense(value) and value.numel() > 0 and is_there(value)


def is_of_floats(value: Any) -> TypeGuard[torch.Tensor]:
    """Whether ``value`` is an ordinary dense tensor of a dtype in ``FLOATS``, of which norms can be taken."""
    return is_plain(value) and value.dtype in FLOATS


def has_grad(*values: Any) -> bool:
    """Whether autograd records an op on these: then it is a part of the computation."""
    return torch.is_grad_enabled() and any(getattr(v, "requires_grad", False) for v in values)


def names_by_address(named: Iterable[tuple[str, torch.Tensor]]) -> dict[int, str]:
    """Return the names of tensors by where they lie, of those that lie anywhere."""
    return {tensor.data_ptr(): name for name, tensor in named if is_plain(tensor)}


def shapes_by_address(tensors: Iterable[torch.Tensor | None]) -> dict[int, torch.Size]:
    """Return the shapes of tensors by where they lie, of those that lie anywhere."""
    return {t.data_ptr(): t.shape for t in tensors if t is not None and is_plain(t)}


def place_name(place: OpPlace, buffer: str | None = None) -> str:
    """Return what a finding calls the place of an op.

    Args:
        place: The place.
        buffer: Name of the buffer that the op writes to, if it is one.

    Returns:
        The buffer, else the module, or ``loss`` outside of all.
    """
    if buffer:
        return f"buffer:{buffer}"
    if place.is_inside or place.module or place.phase is Phase.BACKWARD:
        return place.module
    return "loss"


def head(values: torch.Tensor, most: int) -> torch.Tensor:
    """Return the first elements in their order, up to ``most``, in one dimension.

    Cost: a copy of what is returned at most, unless the last dimension alone is longer.
    """
    while values.numel() > most and values.ndim > 1:
        values = values[0]
    return values.reshape(-1)[:most]


def thinned(values: torch.Tensor, most: int) -> torch.Tensor:
    """Return elements spread over a tensor, about ``most`` at most, in one dimension.

    Two tensors of one shape are thinned alike, however they are laid out.

    Cost: a copy of what is returned.
    """
    for dim in range(values.ndim):
        excess = values.numel() / most
        if excess <= 1.0:
            break
        step = min(values.shape[dim], math.ceil(excess))
        values = values[(slice(None),) * dim + (slice(None, None, step),)]
    return values.reshape(-1)
