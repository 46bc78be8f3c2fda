"""Kernels by their name and by the op that launched them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ampwatch.numerics.formats import FORMATS, MAX_LOW_BITS, PLAIN, SCALES, FormatFamily
from ampwatch.numerics.units.kernels.classifier import UNLISTED
from ampwatch.numerics.units.kernels.kernel_name import KernelName, Unit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ampwatch.numerics.formats import FloatFormat

AMD_FAMILIES = frozenset({"amd", "composable-kernel", "tensile"})
"""Families of AMD's libraries, whose matrix cores multiply float32 as it is."""


def _spellings(formats: Iterable[FloatFormat]) -> list[tuple[str, str]]:
    """Return the formats' dtypes as torch.profiler writes them and as PyTorch does, with labels."""
    return [
        (spelling, fmt.kernel_label)
        for fmt in formats
        for spelling in (fmt.torch_name, fmt.profiler_name.removeprefix("c10::"))
        if spelling
    ]


_LOW = [fmt for fmt in (*SCALES, *FORMATS.values()) if fmt.bits <= MAX_LOW_BITS]

# Of the inputs of addmm the bias may be wider than what is multiplied, of those of _scaled_mm the
# scales may: formats of 16 bits come last, and of these bfloat16 first, whose name contains the
# other's.
_LOW.sort(
    key=lambda fmt: (fmt.family is FormatFamily.HALF, fmt.block is not None, -len(fmt.torch_name))
)

_INPUT_DTYPES = (
    *_spellings(_LOW),
    ("complex<double>", "complex128"),
    ("complex128", "complex128"),
    ("complex", "complex64"),
)
_WIDE_DTYPES = dict(_spellings(fmt for fmt in PLAIN if fmt.bits > MAX_LOW_BITS))
"""The dtypes whose names are part of others. A Python number is float64 beside any of them."""

_OF_TENSOR_CORES = frozenset(fmt.kernel_label for fmt in _LOW)
_SINGLE = frozenset({"float32", "complex64"})

_MATMUL_OP = re.compile(
    r"(?:^|_)(?:(?:badd|add)?b?mm|matmul|linear|conv(?!ert)\w*|einsum)(?:_|$)|attention|(?:^|_)sdpa"
)


def multiplied_dtype(input_dtypes: Iterable[str]) -> str:
    """Return the dtype an op multiplies, by those of its inputs; empty if none is floating.

    Args:
        input_dtypes: As torch.profiler has them, ``c10::BFloat16``, or as PyTorch, ``bfloat16``.
    """
    given = [dtype.lower() for dtype in input_dtypes]
    for part, dtype in _INPUT_DTYPES:
        if any(part in one for one in given):
            return dtype
    wide = {_WIDE_DTYPES[one] for one in given if one in _WIDE_DTYPES}
    return min(wide, default="")


def with_inputs(
    kernel: KernelName, input_dtypes: Iterable[str], *, tf32_allowed: bool = True
) -> KernelName:
    """Return a kernel with what follows from the inputs of its op.

    A kernel that might run on either unit stays unknown, but for float32 inputs where TF32 is
    off: no tensor core of NVIDIA's multiplies these.

    Args:
        kernel: As it was classified by its name.
        input_dtypes: Of the op that launched it; empty if it is not known.
        tf32_allowed: Whether PyTorch may multiply float32 as TF32 there. True on AMD, whose
            matrix cores multiply float32.
    """
    if kernel.unit is Unit.OTHER:
        return kernel
    amd = kernel.family in AMD_FAMILIES
    given = multiplied_dtype(input_dtypes)
    dtype = kernel.dtype or given
    if kernel.unit is not Unit.UNKNOWN:
        if not kernel.dtype and given == "float32" and kernel.unit is Unit.TENSOR and not amd:
            dtype = "tf32"
        return kernel._replace(dtype=dtype)
    judged = given or dtype
    if judged in _OF_TENSOR_CORES:
        return kernel._replace(dtype=dtype, likely="probable")
    if given in _SINGLE and not tf32_allowed and not amd:
        return kernel._replace(unit=Unit.CUDA, dtype=dtype, likely="")
    return kernel._replace(dtype=dtype, likely="possible" if judged else "")


def launched_by(kernel: KernelName, op: str) -> KernelName:
    """Return the kernel as ``unknown`` if no rule knows it but a matmul launched it.

    A family that nobody knows is noticed by this, as nvjet and bmm_* once were.

    Args:
        kernel: As it was classified by its name.
        op: The innermost op that launched it, ``aten::mm``; empty if it is not known.
    """
    if kernel.rule == UNLISTED and _MATMUL_OP.search(op.rpartition("::")[2]):
        return kernel._replace(unit=Unit.UNKNOWN)
    return kernel
