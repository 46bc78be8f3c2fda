"""The L2 norms of tensors, by PyTorch's own ops: where they are on a device, or nothing is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ampwatch.training.kernels.dtypes import FLOATS
from ampwatch.training.private import foreach_copy, foreach_norm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


@torch.no_grad()
def fill_norms(pieces: Sequence[Tensor], out: Tensor) -> None:
    """Fill ``out[i]`` with the L2 norm of ``pieces[i]`` (``base.Kernel.norms``).

    Cost:
        On a device some launches for each dtype, not for each piece.
    """
    by_dtype: dict[torch.dtype, list[int]] = {}
    for number, piece in enumerate(pieces):
        by_dtype.setdefault(piece.dtype, []).append(number)
    norms = list(out[: len(pieces)].fill_(float("nan")).unbind())
    for dtype, numbers in by_dtype.items():
        if dtype not in FLOATS:
            continue
        foreach_copy([norms[n] for n in numbers], _norms([pieces[n] for n in numbers], 2.0))


@torch.no_grad()
def norms_of(tensors: Sequence[Tensor], order: float = 2.0) -> Tensor:
    """Return the norms of tensors on one device, in float32.

    Args:
        tensors: Tensors of any shapes and of dtypes in ``FLOATS``.
        order: Order of the norms; infinity for the largest magnitude.

    Returns:
        One number a tensor, the same whatever other tensors it is asked for with.

    Cost:
        One op for all of them, or two where some are float64. Where ops are observed, one op for each tensor
        would take longer by that than by itself.
    """
    found: dict[int, Tensor] = {}
    for is_wide in (False, True):
        mine = [n for n, t in enumerate(tensors) if (t.dtype is torch.float64) is is_wide]
        if mine:
            found.update(zip(mine, _norms([tensors[n] for n in mine], order), strict=True))
    return torch.stack([found[n].float() for n in range(len(tensors))])


def _norms(tensors: Sequence[Tensor], order: float) -> list[Tensor]:
    """Return the norms of tensors, of which none is float64 or all are."""
    # Squares of what float16 holds do not fit into it. PyTorch refuses to narrow float64.
    dtype = torch.float64 if tensors[0].dtype is torch.float64 else torch.float32
    found: list[Tensor] = foreach_norm([t.detach() for t in tensors], order, dtype=dtype)
    return found
