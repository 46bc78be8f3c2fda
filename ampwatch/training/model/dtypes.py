"""Names of dtypes, and the dtype that several of them are promoted to."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from ampwatch.numerics.formats import FORMATS, HALF

if TYPE_CHECKING:
    from collections.abc import Iterable

NAMES = {
    dtype: str(dtype).removeprefix("torch.")
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}
"""Every dtype of this version of PyTorch, and its name."""

OTHER = "other"
"""Name of a dtype that ``NAMES`` does not hold: one that was registered later."""

_FLOATS = frozenset(dtype for dtype in NAMES if dtype.is_floating_point)
_BITS = {NAMES[dtype]: torch.finfo(dtype).bits for dtype in _FLOATS}


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype as PyTorch writes it, without ``torch.``."""
    return NAMES.get(dtype, OTHER)


@functools.lru_cache(maxsize=1024)
def promoted(dtypes: tuple[torch.dtype, ...]) -> tuple[tuple[str, ...], str]:
    """Return the floating-point dtypes among those of inputs, and the one they are promoted to.

    The names come sorted and each once. Without any floating-point dtype the second is empty.
    """
    names = tuple(sorted({NAMES[dtype] for dtype in dtypes if dtype in _FLOATS}))
    bits = [_BITS[name] for name in names]
    # Of two formats of 16 bits one has the range and the other the precision: PyTorch promotes
    # float16 with bfloat16 to float32, unless something wider takes part anyway.
    if len(set(names).intersection(HALF)) > 1 and max(bits) == _BITS[HALF[0]]:
        return names, "float32"
    return names, max(names, key=_BITS.__getitem__, default="")


def unknown_formats(names: Iterable[str]) -> list[str]:
    """Return in sentences which number formats this version of PyTorch has no dtype for."""
    unknown = [
        name for name in names if (dtype := FORMATS[name].torch_name) and not hasattr(torch, dtype)
    ]
    if not unknown:
        return []
    listed = ", ".join(unknown)
    return [f"PyTorch {torch.__version__} has no dtype for {listed}, and a newer one may have"]
