"""Selection of the kernel that measures on a device."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ampwatch.errors import StateError
from ampwatch.training.kernels.eager import EagerKernel
from ampwatch.training.kernels.native import load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from ampwatch.training.kernels.base import Kernel
    from ampwatch.training.kernels.native import FiniteCheck

_native = cache(load)
"""One in each process."""


def _triton() -> Kernel:
    if find_spec("triton") is None:
        msg = "expected Triton, which comes with PyTorch's own builds for GPUs, to be installed"
        raise StateError(msg)
    # Triton is heavy, and not there on machines without a GPU.
    from ampwatch.training.kernels.fused import TritonKernel  # noqa: PLC0415

    return TritonKernel()


def finite_checks() -> Mapping[torch.dtype, FiniteCheck]:
    """Return what says quickly whether memory of the host holds finite numbers, by dtype.

    Returns:
        ``NativeKernel.finite_checks``; nothing without the C part.
    """
    kernel = _native()
    return {} if kernel is None else kernel.finite_checks


KERNELS: dict[str, Callable[[], Kernel]] = {"cuda": _triton}
"""Makers of the kernels of accelerators, by type of device. ROCm's devices are of type ``cuda``."""


def kernel_for(device: torch.device) -> Kernel:
    """Return a kernel for a device.

    On a CPU the C kernel where ampwatch was installed with it, else the one in PyTorch. On CUDA
    and ROCm the Triton kernel where Triton is installed, as it is with PyTorch's own wheels.
    On other accelerators, and without Triton, none: PyTorch's ``bincount`` waits for the device.

    Raises:
        StateError: If there is none for this type of device, or Triton is not installed.
    """
    if device.type == "cpu":
        return _native() or EagerKernel()
    kernel = KERNELS.get(device.type)
    if kernel is None:
        msg = f"expected a device of CUDA or ROCm, got one of {device.type}"
        raise StateError(msg)
    return kernel()
