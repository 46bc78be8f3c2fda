"""What the op that launched a kernel adds to what the kernel's name tells."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ampwatch.numerics.units.kernels.kernel_names import UNLISTED
from ampwatch.numerics.units.kernels.verdict import KernelName, Unit

if TYPE_CHECKING:
    from collections.abc import Iterable

AMD_FAMILIES = frozenset({"amd", "composable-kernel", "tensile"})
"""Families of AMD's libraries, whose matrix cores multiply float32 as it is."""

# As torch.profiler writes the dtypes of inputs and as PyTorch does, the narrowest first: of
# the inputs of _scaled_mm the scales are wider, of those of addmm the bias may be.
_INPUT_DTYPES = (
    ("float8", "float8"),
    ("float4", "mx"),
    ("bfloat16", "bfloat16"),
    ("half", "float16"),
    ("float16", "float16"),
    ("complex<double>", "complex128"),
    ("complex128", "complex128"),
    ("complex", "complex64"),
)
_WIDE_DTYPES = {"float": "float32", "float32": "float32", "double": "float64", "float64": "float64"}
"""The dtypes whose names are part of others. A Python number is float64 beside any of them."""

_OF_TENSOR_CORES = frozenset({"float8", "mx", "bfloat16", "float16"})
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
    """Return what a kernel's name and the inputs of its op tell together.

    A kernel that might run on either unit stays unknown, but for float32 inputs where TF32 is
    off: no tensor core of NVIDIA's multiplies these.

    Args:
        kernel: What the name tells.
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

    That is how a family nobody has heard of is noticed: nvjet and bmm_* were such once.

    Args:
        kernel: What the name tells.
        op: The innermost op that launched it, ``aten::mm``; empty if it is not known.
    """
    if kernel.rule == UNLISTED and _MATMUL_OP.search(op.rpartition("::")[2]):
        return kernel._replace(unit=Unit.UNKNOWN)
    return kernel
