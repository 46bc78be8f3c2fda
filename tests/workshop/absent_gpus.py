"""GPUs that are not there: Triton compiles for them, or decides for which variants it would."""

from __future__ import annotations

import inspect
from typing import Any

from triton.backends.compiler import GPUTarget

TARGETS = {
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
"""Backend, architecture and lanes of a warp: A100, H100 and H200, B200, MI300."""


def target_of(name: str) -> GPUTarget:
    """Return the GPU that Triton is told to compile for."""
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415 - Triton is optional

    return GPUTarget(*TARGETS[name])


def compiled_for(name: str, dtype: str) -> Any:
    """Compile the kernel that measures a dtype, as it is launched, and return what Triton made."""
    import triton  # noqa: PLC0415
    from triton.compiler import ASTSource  # noqa: PLC0415

    from ampwatch.training.kernels import fused_device  # noqa: PLC0415
    from ampwatch.training.kernels.fused import CONSTANTS, options_of  # noqa: PLC0415

    signature = {"units": "*i64", "rows": "*i32"}
    options = options_of(dtype, is_rocm=TARGETS[name][0] == "hip")
    constants = CONSTANTS[dtype] | {"WARPS": options.pop("WARPS")}
    if "constexprs" in inspect.signature(ASTSource).parameters:  # Triton 3.3
        signature |= dict.fromkeys(constants, "constexpr")
        source = ASTSource(fused_device.measure, signature, constexprs=constants)
    else:
        source = ASTSource(fused_device.measure, signature, constants=constants)
    return triton.compile(source, target=target_of(name), options=options)


class AbsentDriver:
    """What Triton asks a driver before it compiles.

    Args:
        name: The GPU that it says is there.
    """

    def __init__(self, name: str) -> None:
        self._target = target_of(name)

    def get_current_device(self) -> str:
        # Triton keeps variants by device: a name keeps them apart from those of GPUs that are there.
        return f"absent {self._target.arch}"

    def get_current_stream(self, _device: str) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self._target
