"""The formats as dtypes of the PyTorch that is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ampwatch.numerics.formats import FORMATS, FormatFamily

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ampwatch.numerics.formats import FloatFormat


def dtypes_of(formats: Iterable[FloatFormat]) -> dict[torch.dtype, FloatFormat]:
    """Return the dtypes that hold elements of formats, in their order.

    An older PyTorch lacks the dtypes of newer formats, and some formats have none at all.
    """
    found = {getattr(torch, fmt.torch_name, None): fmt for fmt in formats}
    return {dtype: fmt for dtype, fmt in found.items() if isinstance(dtype, torch.dtype)}


MEASURED = dtypes_of(fmt for fmt in FORMATS.values() if fmt.is_measured)
"""The dtypes that kernels measure, with their formats."""

HALF = frozenset(dtype for dtype, fmt in MEASURED.items() if fmt.family is FormatFamily.HALF)

FLOATS = frozenset(
    dtype for dtype, fmt in MEASURED.items() if fmt.family is not FormatFamily.FLOAT8
)
"""The dtypes whose values mean something by themselves; those of float8 are codes, to be
multiplied by a scale that is elsewhere."""
