"""The kernel for GPUs: CUDA and ROCm, through Triton. Imports Triton; load it lazily."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ampwatch.numerics.encodings import ENCODINGS
from ampwatch.training import devices
from ampwatch.training.kernels import fused_blocks, fused_device
from ampwatch.training.kernels.norms import fill_norms
from ampwatch.training.kernels.rows import BLOCK_DTYPES
from ampwatch.training.kernels.work_units import StretchUnits, WorkUnits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ampwatch.numerics.encodings import Encoding

_UNITS_PER_PROCESSOR = 8

_THREADS = 128
"""Of a block: one for each of ``fused_device.LANES``."""

_MAX_REGISTERS = 128
"""Registers of a thread that ptxas may use, so that a multiprocessor holds four blocks, half of
its units. No dtype of training needs more; what ptxas takes without a limit depends on the
version of Triton."""

_MAX_REGISTERS_64 = 168
"""Registers of a thread for float64, whose keys take two registers each: three blocks."""


class TritonKernel:
    """Measures all pieces of a dtype in one launch, on the current stream.

    Neither the host nor another stream is waited for. What belongs to the current stream, or
    is ordered with it, may be given back as soon as ``measure`` returns.

    ``stride`` has no effect: all blocks count. Not to be called while a graph is captured:
    the upload of a table would be part of it.

    Cost:
        One small launch to clear the rows, and one for each dtype. The first call for a
        dtype compiles for a second or two, and so does the first with a gate for a tenth of that;
        Triton keeps the result on disk. Nothing else of a call makes it compile again.
    """

    name = "triton"
    max_binned = 0

    def __init__(self) -> None:
        self._units = WorkUnits(fused_device.STEP.value, _UNITS_PER_PROCESSOR)
        self._stretches = StretchUnits(_UNITS_PER_PROCESSOR)

    norms = staticmethod(fill_norms)

    def measure(
        self,
        pieces: Sequence[Tensor],
        rows: Tensor,
        *,
        stride: Sequence[int] | None = None,  # noqa: ARG002 - part of the contract
        gate: Tensor | None = None,
        blocks: Tensor | None = None,
    ) -> None:
        """Fill ``rows[i]`` with the exponents of ``pieces[i]`` (``base.Kernel.measure``)."""
        if not pieces:
            return
        gated = gate is not None
        # Triton wants a pointer in any case; without GATED it is not read.
        gate = rows if gate is None else gate
        is_rocm = torch.version.hip is not None
        # Triton launches on the current device, whatever the tensors are on.
        with devices.on(rows.device):
            launches = self._units.of(pieces, rows.device)
            fused_device.prepare[len(pieces),](rows, gate, GATED=gated, num_warps=4)
            for dtype, units in launches:
                fused_device.measure[len(units),](
                    units, rows, **CONSTANTS[dtype], **options_of(dtype, is_rocm=is_rocm)
                )
        if blocks is not None:
            self.measure_blocks(pieces, rows, blocks)

    def measure_blocks(self, pieces: Sequence[Tensor], rows: Tensor, out: Tensor) -> None:
        """Fill ``out[i]`` with the blocks of ``pieces[i]`` (``base.Kernel.measure_blocks``)."""
        if not pieces:
            return
        out[: len(pieces)].zero_()
        with devices.on(rows.device):
            for dtype, units in self._stretches.of(pieces, rows.device):
                if dtype in BLOCK_DTYPES:
                    constants = CONSTANTS[dtype]
                    fused_blocks.measure_blocks[len(units),](
                        units,
                        rows,
                        out,
                        KIND=constants["KIND"],
                        MANTISSA=constants["MANTISSA"],
                        OFFSET=constants["OFFSET"],
                        num_warps=_THREADS // 32,
                    )


def options_of(dtype: str, *, is_rocm: bool) -> dict[str, int]:
    """Return how ``fused_device.measure`` is compiled for a dtype, besides ``CONSTANTS``."""
    if is_rocm:  # 64 threads are a warp; and Triton knows no limit there, and raises KeyError
        warps = _THREADS // 64
        return {"WARPS": warps, "num_warps": warps}
    warps = _THREADS // 32
    limit = _MAX_REGISTERS_64 if dtype == "float64" else _MAX_REGISTERS
    return {"WARPS": warps, "num_warps": warps, "maxnreg": limit}


def _constants(name: str, encoding: Encoding) -> dict[str, str | int]:
    """Return a dtype as the constants of ``fused_device``."""
    mantissa = encoding.mantissa_bits
    beyond = encoding.max_key + 1
    if name == "float64":
        return _named(name, mantissa, 0, encoding.max_key, beyond)
    # Exponent fields of float32 are larger than those of the dtype by as much.
    offset = 126 + encoding.unit + mantissa
    max_key = (encoding.max_key << 23 - mantissa) + (offset << 23)
    inf_key = (beyond << 23 - mantissa) + (offset << 23) if encoding.has_infs else 0
    if name == "float16":  # the conversion by the device gives the infinity of float32
        inf_key = 0x7F800000
    kind = "float8" if encoding.bits == 8 else name
    if encoding.nan_is_negative_zero:
        kind = "float8fnuz"
    return _named(kind, mantissa, offset, max_key, inf_key)


def _named(
    kind: str, mantissa: int, offset: int, max_key: int, inf_key: int
) -> dict[str, str | int]:
    return {
        "KIND": kind,
        "MANTISSA": mantissa,
        "OFFSET": offset,
        "MAX_KEY": max_key,
        "INF_KEY": inf_key,
    }


CONSTANTS = {name: _constants(name, encoding) for name, encoding in ENCODINGS.items()}
