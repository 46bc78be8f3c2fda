"""GPUs by the names that people call them: what a plan for a machine that is not at hand needs to know.

Source:
    NVIDIA's datasheets and whitepapers of the products; clocks are boost clocks. What tensor cores
    multiply per clock is in ``peaks``. FP4: datasheets of HGX B200 and B300, dense.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

from ampwatch.errors import SettingsError, did_you_mean
from ampwatch.numerics.formats import FormatFamily
from ampwatch.numerics.units.peaks import peak_flops

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ampwatch.numerics.formats import FloatFormat

_BLOCK_SCALED_FROM = (10, 0)
"""Compute capability from which on tensor cores multiply block-scaled formats."""

_FP4_PER_HALF = {(10, 0): 4.0, (10, 3): 6.0}


class Gpu(Struct, frozen=True):
    """A GPU.

    Attributes:
        name: What people call it.
        product: What its driver calls it.
        capability: Compute capability.
        num_sms: Streaming multiprocessors.
        clock_hz: Boost clock. Unit: Hz.
        bandwidth: Of its memory. Unit: B/s.
    """

    name: str
    product: str
    capability: tuple[int, int]
    num_sms: int
    clock_hz: float
    bandwidth: float

    @property
    def peaks(self) -> Mapping[str, float]:
        """Dense peaks by dtype. Unit: FLOP/s."""
        return peak_flops(self.capability, self.num_sms, self.clock_hz, self.product).flops

    def multiplies(self, fmt: FloatFormat) -> bool:
        """Whether its tensor cores, or for float32 its other cores, multiply a format."""
        if fmt.block is not None:
            return self.capability >= _BLOCK_SCALED_FROM
        return self._label(fmt) in self.peaks

    def flops(self, fmt: FloatFormat) -> float:
        """Return the dense peak of a format; NaN where it is not known. Unit: FLOP/s."""
        if fmt.family is FormatFamily.FLOAT4:
            return self.peaks["float16"] * _FP4_PER_HALF.get(self.capability, math.nan)
        return self.peaks.get(self._label(fmt), math.nan)

    def _label(self, fmt: FloatFormat) -> str:
        if fmt.family is FormatFamily.FLOAT8:
            return FormatFamily.FLOAT8.value
        return fmt.name


_ROWS = (
    Gpu("V100", "Tesla V100-SXM2-16GB", (7, 0), 80, 1.53e9, 900e9),
    Gpu("T4", "Tesla T4", (7, 5), 40, 1.59e9, 320e9),
    Gpu("A100", "NVIDIA A100-SXM4-80GB", (8, 0), 108, 1.41e9, 2039e9),
    Gpu("A30", "NVIDIA A30", (8, 0), 56, 1.44e9, 933e9),
    Gpu("A40", "NVIDIA A40", (8, 6), 84, 1.74e9, 696e9),
    Gpu("A10", "NVIDIA A10", (8, 6), 72, 1.695e9, 600e9),
    Gpu("RTX 3090", "NVIDIA GeForce RTX 3090", (8, 6), 82, 1.695e9, 936e9),
    Gpu("L4", "NVIDIA L4", (8, 9), 58, 2.04e9, 300e9),
    Gpu("L40S", "NVIDIA L40S", (8, 9), 142, 2.52e9, 864e9),
    Gpu("RTX 4090", "NVIDIA GeForce RTX 4090", (8, 9), 128, 2.52e9, 1008e9),
    Gpu("H100", "NVIDIA H100 80GB HBM3", (9, 0), 132, 1.83e9, 3350e9),
    Gpu("H100 PCIe", "NVIDIA H100 PCIe", (9, 0), 114, 1.62e9, 2000e9),
    Gpu("H200", "NVIDIA H200", (9, 0), 132, 1.83e9, 4800e9),
    Gpu("B200", "NVIDIA B200", (10, 0), 148, 1.85e9, 8000e9),
    Gpu("RTX 5090", "NVIDIA GeForce RTX 5090", (12, 0), 170, 2.407e9, 1792e9),
)

GPUS: dict[str, Gpu] = {gpu.name: gpu for gpu in _ROWS}
"""Every GPU by its name."""


def find_gpu(name: str) -> Gpu:
    """Return a GPU by its name, whatever its case, or by that of its product.

    Raises:
        SettingsError: If it is not known.
    """
    wanted = _plain(name)
    for gpu in _ROWS:
        if wanted in (_plain(gpu.name), _plain(gpu.product)):
            return gpu
    msg = f"expected a GPU of {', '.join(GPUS)}, got {name!r}{did_you_mean(name, GPUS)}"
    raise SettingsError(msg)


def _plain(name: str) -> str:
    return name.casefold().replace(" ", "").replace("-", "").replace("_", "")
