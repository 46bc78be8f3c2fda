"""Probe of what measures ranges on this machine: a compiled kernel, PyTorch alone, Triton."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ampwatch.doctor.check import Check, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.doctor.check import Load


def cpu_kernel(load: Load) -> Check:
    """Return whether the C kernel can be compiled and loaded here, by doing it."""
    if load("ampwatch.training.kernels.native").load() is not None:
        return Check("ranges, CPU", State.OK, "measured by C, compiled here when a training starts")
    why = "no C compiler whose library can be loaded: measured by PyTorch, which takes longer"
    remedy = "install gcc or clang; the temporary directory must allow programs"
    return Check("ranges, CPU", State.ABSENT, why, remedy)


def device_kernel(torch: Any, find: Callable[[str], object] = find_spec) -> list[Check]:
    """Return whether ranges can be measured on the devices that torch sees, if it sees any."""
    if not torch.cuda.is_available():
        return []
    if find("triton") is not None:
        return [Check("ranges, device", State.OK, "measured by Triton")]
    why = "Triton is not installed, so no ranges are measured on a device"
    return [Check("ranges, device", State.ABSENT, why, "pip install triton")]
