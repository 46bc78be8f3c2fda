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
        if dtype in FLOATS:
            # Squares of what float16 holds do not fit into it. PyTorch refuses to narrow float64.
            wide = torch.float64 if dtype is torch.float64 else torch.float32
            found = foreach_norm([pieces[n].detach() for n in numbers], 2.0, dtype=wide)
            foreach_copy([norms[n] for n in numbers], found)
