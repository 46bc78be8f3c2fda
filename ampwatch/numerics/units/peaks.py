"""Peaks of GPUs: FLOP/s by dtype, from their SMs, clock and generation.

Product of three factors: SMs, clock, and FLOP per clock and SM. It agrees with the datasheets
within 1.3 %, knows the product at its own clock, and covers cards no list has. All numbers are
dense: those of datasheets since Hopper, and the "AI TOPS" of consumer cards, count the zeros of
structured sparsity and are twice as high.

A device that is not known has no peak and a reason instead: a guess would show up as utilisation.

Source:
    Tensor cores: NVIDIA's architecture whitepapers (Volta, Turing, A100, GA102, AD102, H100,
    Blackwell), "FP16/FP32 mixed-precision FMA operations per clock per SM". General-purpose
    cores: CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions", two FLOP
    per multiply-add.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field

from ampwatch.errors import SettingsError, did_you_mean
from ampwatch.numerics.formats import FormatFamily
from ampwatch.numerics.units.kernels.kernel_patterns import DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ampwatch.numerics.formats import FloatFormat


class _Rates(NamedTuple):
    """FLOP per clock and SM of one generation."""

    half: int  # of float16 accumulated in float32, as PyTorch does it, on tensor cores
    tensor_dtypes: Mapping[str, float]  # what else tensor cores multiply, as a multiple of ``half``
    float32: int  # of the general-purpose cores
    float64: int  # of the faster of the two


_AMPERE = {"bfloat16": 1.0, "tf32": 0.5}
_HOPPER = _AMPERE | {"float8": 2.0}
_RATES: Mapping[tuple[int, int], _Rates] = {
    (7, 0): _Rates(1024, {}, float32=128, float64=64),
    (7, 5): _Rates(1024, {}, float32=128, float64=4),
    (8, 0): _Rates(2048, _AMPERE, float32=128, float64=128),
    (8, 6): _Rates(1024, _AMPERE, float32=256, float64=4),
    (8, 9): _Rates(1024, _HOPPER, float32=256, float64=4),
    (9, 0): _Rates(4096, _HOPPER, float32=256, float64=256),
    (10, 0): _Rates(8192, _HOPPER, float32=256, float64=128),
    (10, 3): _Rates(8192, _HOPPER, float32=256, float64=4),
    (12, 0): _Rates(1024, _HOPPER, float32=256, float64=4),
}
_INT8_PER_HALF = 2.0
_WITHOUT_FAST_INT8 = ((7, 0), (10, 3))  # Volta has none; Blackwell Ultra gave it up for FP4

# Accumulating in float32, which PyTorch does, runs at half the rate of accumulating in float16
# on GeForce cards from Turing on; TITANs and the professional cards are not halved.
_HALF_ACCUMULATION = re.compile(r"\bGeForce\b", re.IGNORECASE)
# By their datasheets half as fast as the cards of the same chip, in every dtype of tensor cores.
_HALF_TENSOR_CORES = re.compile(r"\bA10G\b|\bL40\b", re.IGNORECASE)
# Turing without tensor cores: TU116 and TU117.
_WITHOUT_TENSOR_CORES = re.compile(
    r"\bGTX 16\d\d|\bMX4\d0\b|\bT(?:400|500|550|600|1000|1200|2000)\b", re.IGNORECASE
)
# Sold with less than their SMs could do, by export rules or for mining.
_LIMITED = re.compile(r"\b(?:H20|L20|L2)\b|\b5090 ?D\b|\bCMP \d", re.IGNORECASE)
_NOT_NVIDIA = re.compile(r"\bAMD\b|Instinct|Radeon|\bgfx\d|Intel|\bMoore|\bMTT\b", re.IGNORECASE)

_REMEDY = "set peak_flops to what its datasheet says"


class Peaks(Struct, frozen=True):
    """The peaks of a device.

    Attributes:
        flops: By dtype. Unit: FLOP/s.
        reason: Why there is none, as a sentence; empty if there is one.
    """

    flops: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


def peak_flops(capability: tuple[int, int], num_sms: int, clock_hz: float, name: str) -> Peaks:
    """Return the dense peaks of a device, with float32 accumulation.

    Args:
        capability: Compute capability.
        num_sms: Streaming multiprocessors; of a MIG slice, its own.
        clock_hz: SM clock, the highest or the present one. Unit: Hz.
        name: Of the product. It tells NVIDIA from AMD, whose capabilities look alike, and the
            products that are slower than their generation.
    """
    reason = _why_not(capability, num_sms, clock_hz, name)
    if reason:
        return Peaks(reason=reason)
    rates = _RATES[capability]
    per_clock: dict[str, float] = {"float32": rates.float32, "float64": rates.float64}
    if not _WITHOUT_TENSOR_CORES.search(name):
        per_clock |= _tensor_flops(capability, rates, name)
    return Peaks({dtype: num_sms * clock_hz * flop for dtype, flop in per_clock.items()})


def _tensor_flops(capability: tuple[int, int], rates: _Rates, name: str) -> dict[str, float]:
    """Return what an SM's tensor cores multiply per clock, by dtype."""
    fastest = rates.half / 2 if _HALF_TENSOR_CORES.search(name) else rates.half
    halved = capability >= (7, 5) and _HALF_ACCUMULATION.search(name)
    half = fastest / 2 if halved else fastest
    per_clock = {"float16": half}
    per_clock |= {dtype: ratio * half for dtype, ratio in rates.tensor_dtypes.items()}
    if capability not in _WITHOUT_FAST_INT8:
        per_clock["int8"] = _INT8_PER_HALF * fastest  # accumulated in integers
    return per_clock


def _why_not(capability: tuple[int, int], num_sms: int, clock_hz: float, name: str) -> str:
    """Return why the peaks of a device are not known; empty if they are."""
    major, minor = capability
    if _NOT_NVIDIA.search(name) or not name.strip():
        return f"The peak is derived for NVIDIA's GPUs only, and this is {name or 'a nameless one'}; {_REMEDY}."
    if _LIMITED.search(name):
        return f"{name} is slower than its SMs, to an extent that is not published; {_REMEDY}."
    if capability not in _RATES:
        return f"What an SM of compute capability {major}.{minor} multiplies per clock is not known; {_REMEDY}."
    if num_sms < 1 or not 0.0 < clock_hz < math.inf:
        return f"{name} does not report its SMs or its clock; {_REMEDY}."
    return ""


_SEPARATOR = re.compile(r"[,;\s]+")
_EXAMPLE = "e.g. float16=989e12,tf32=494e12"


def parse_override(text: str) -> dict[str, float]:
    """Return the peaks of the setting ``peak_flops``, by dtype.

    Args:
        text: ``float16=989e12, float32=67e12``, in FLOP/s; empty for none.

    Raises:
        SettingsError: If it is not of that form.
    """
    entries = _SEPARATOR.split(re.sub(r"\s*=\s*", "=", text.strip()))
    return dict(_parse_peak(entry) for entry in entries if entry)


def _parse_peak(entry: str) -> tuple[str, float]:
    dtype, equals, number = entry.partition("=")
    if not equals:
        msg = f"`peak_flops`: expected dtype=FLOP/s, got {entry!r}; {_EXAMPLE}"
        raise SettingsError(msg)
    if dtype not in DTYPES:
        msg = f"`peak_flops`: expected a dtype of {', '.join(DTYPES)}, got {dtype!r}; {_EXAMPLE}"
        raise SettingsError(msg)
    try:
        flops = float(number)
    except ValueError:
        flops = math.nan
    if not 0.0 < flops < math.inf:
        msg = f"`peak_flops`: expected a number of FLOP/s above 0 for {dtype}, got {number!r}; {_EXAMPLE}"
        raise SettingsError(msg)
    return dtype, flops


class IdealTime(Struct, frozen=True):
    """The least time that a device needs.

    Attributes:
        seconds: ``None`` if it is not known.
        reason: Why not, as a sentence; empty if it can.
    """

    seconds: float | None
    reason: str = ""


def ideal_seconds(flops_by_dtype: Mapping[str, float], peaks: Mapping[str, float]) -> IdealTime:
    """Return the least time that FLOPs take, each dtype at its own peak.

    Over the time they did take, that is the utilisation, whatever the mixture of dtypes.

    Args:
        flops_by_dtype: What is to be done. Unit: FLOP.
        peaks: What can be done. Unit: FLOP/s.
    """
    missing = sorted(d for d, flops in flops_by_dtype.items() if flops > 0 and not peaks.get(d))
    if missing:
        names = ", ".join(dtype or "a dtype that is not known" for dtype in missing)
        return IdealTime(None, f"The device has no known peak for {names}; {_REMEDY}.")
    return IdealTime(sum(flops / peaks[d] for d, flops in flops_by_dtype.items() if flops > 0))


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
"""GPUs by the names that people call them: what a plan for a machine that is not at hand needs to know.

Source:
    NVIDIA's datasheets and whitepapers of the products; clocks are boost clocks. FP4: datasheets of HGX B200 and
    B300, dense.
"""


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
