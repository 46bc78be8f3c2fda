"""Dtypes of the PyTorch that is installed: their names, and those that hold numbers of a format."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from ampwatch.numerics.formats import FORMATS, FormatFamily
from ampwatch.numerics.formats import HALF as HALF_NAMES

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
    if len(set(names).intersection(HALF_NAMES)) > 1 and max(bits) == _BITS[HALF_NAMES[0]]:
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
