"""Selection of the kernel that measures on a device."""

from __future__ import annotations

import logging
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ampwatch.training.kernels.eager import EagerKernel
from ampwatch.training.kernels.native import load

if TYPE_CHECKING:
    import torch

    from ampwatch.settings import Settings
    from ampwatch.training.kernels.base import Kernel

logger = logging.getLogger("ampwatch")

_native = cache(load)
"""Compiled once per process."""


class KernelSelector:
    """Selects a kernel once per type of device.

    On a CPU the C kernel where the machine has a compiler, else the one in PyTorch. On CUDA
    and ROCm the Triton kernel where Triton is installed, as it is with PyTorch's own wheels.
    On other devices, and without Triton, none: PyTorch's ``bincount`` waits for the device.

    Args:
        settings: ``cpu_kernel``.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._chosen: dict[str, Kernel | None] = {}

    def of(self, device: torch.device) -> Kernel | None:
        """Return the kernel for a device, ``None`` if there is none.

        Cost: the first time on a CPU up to a second, when the C kernel is compiled.
        """
        if device.type not in self._chosen:
            self._chosen[device.type] = self._choose(device)
        return self._chosen[device.type]

    def _choose(self, device: torch.device) -> Kernel | None:
        if device.type == "cpu":
            native = _native() if self._settings.cpu_kernel == "auto" else None
            return native or EagerKernel()
        if device.type == "cuda" and find_spec("triton") is not None:
            # Triton is heavy, and not there on machines without a GPU.
            from ampwatch.training.kernels.fused import TritonKernel  # noqa: PLC0415

            return TritonKernel()
        logger.warning(
            "ranges are not measured on %s: expected CUDA or ROCm with Triton installed", device
        )
        return None
