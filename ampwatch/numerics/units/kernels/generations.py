"""Kernels written for an older generation of GPUs than the one they run on.

A kernel with the instructions of sm80 runs at a fraction of the rate of Hopper's tensor cores.
cuBLAS falls back to kernels of sm80 for odd dimensions, for instance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.numerics.formats import FORMATS
from ampwatch.numerics.units.kernels.kernel_name import Unit

if TYPE_CHECKING:
    from ampwatch.numerics.units.kernels.kernel_name import KernelName

_MATMULS = (70, 75, 80, 90, 100)
_LINEAGES = {
    "cublas": _MATMULS,
    "cutlass": _MATMULS,
    "xmma": _MATMULS,
    "nvjet": _MATMULS,
    "cudnn-attention": (80, 90, 100),
    "efficient-attention": (70, 75, 80),
    "flash-attention-2": (80,),
}
"""The architectures for which a family has kernels with instructions of their own. PyTorch's own
FlashAttention 2 on an H100 is no lag: the family has nothing newer."""

_DTYPES = frozenset({fmt.kernel_label for fmt in FORMATS.values() if fmt.alignment} | {""})
"""The dtypes that the newest kernels of these families multiply; of some the name says none."""

_WITH_INSTRUCTIONS_OF_80 = (12,)
"""Majors of compute capabilities above that have neither Hopper's nor the larger Blackwell's
instructions: consumer Blackwell multiplies by those of sm80."""


def lags(kernel: KernelName, capability: tuple[int, int]) -> bool:
    """Return whether a kernel's library has tensor-core kernels of a newer generation for the device.

    Args:
        kernel: The kernel.
        capability: The device's compute capability.
    """
    lineage = _LINEAGES.get(kernel.family)
    if kernel.unit is not Unit.TENSOR or not lineage or kernel.dtype not in _DTYPES:
        return False
    major, minor = capability
    device = 80 if major in _WITH_INSTRUCTIONS_OF_80 else 10 * major + minor
    newest = max((arch for arch in lineage if arch <= device), default=0)
    return kernel.arch is not None and kernel.arch < newest
