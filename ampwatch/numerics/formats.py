"""The number formats of training, one row each.

A format is added here: its limits follow from its bits, and the lists of formats in this package
are made from the rows. Two things are elsewhere. How fast a GPU multiplies it, where that is not
the speed of its label, is in the table of GPUs (``units/peaks.py``). Elements of 8 bits are
measured by tables; elements with more bits in a layout of their own need code in the kernels
(``histogram.c`` and ``fused_keys.py``).

Limits, which are checked against PyTorch's own casts, or by decoding all bit patterns:

=================  ==========  =============  ==================  =====================
format             max         overflow from  smallest normal     smallest subnormal
=================  ==========  =============  ==================  =====================
float64            1.797e308   inf            2**-1022            2**-1074
float32            3.403e38    3.403e38       2**-126 = 1.18e-38  2**-149 = 1.40e-45
tf32               3.401e38    3.402e38       2**-126 = 1.18e-38  2**-136 = 1.15e-41
float16            65504       65520          2**-14 = 6.10e-5    2**-24 = 5.96e-8
bfloat16           3.390e38    3.396e38       2**-126 = 1.18e-38  2**-133 = 9.18e-41
float8_e4m3fn      448         above 464      2**-6 = 0.015625    2**-9 = 0.001953
float8_e5m2        57344       61440          2**-14 = 6.10e-5    2**-16 = 1.53e-5
float8_e4m3fnuz    240         248            2**-7 = 0.0078125   2**-10 = 0.000977
float8_e5m2fnuz    57344       61440          2**-15 = 3.05e-5    2**-17 = 7.63e-6
mxfp8_e4m3         448         above 464      2**-6 = 0.015625    2**-9 = 0.001953
mxfp8_e5m2         57344       61440          2**-14 = 6.10e-5    2**-16 = 1.53e-5
mxint8             1.984       1.992          2**0 = 1            2**-6 = 0.015625
mxfp6_e2m3         7.5         7.75           2**0 = 1            2**-3 = 0.125
mxfp6_e3m2         28          30             2**-2 = 0.25        2**-4 = 0.0625
mxfp4              6           7              2**0 = 1            2**-1 = 0.5
nvfp4              6           7              2**0 = 1            2**-1 = 0.5
=================  ==========  =============  ==================  =====================

Those of the block-scaled formats, from mxfp8_e4m3 on, are limits of an element whose scale is 1.

Source:
    float16, float32, float64: IEEE 754-2019, table 3.5. bfloat16 and TF32: IEEE layouts
    with 8 exponent bits and 7 and 10 mantissa bits (NVIDIA A100 architecture whitepaper).
    float8_e4m3fn, float8_e5m2: OCP 8-bit Floating Point Specification, revision 1.0, table 1,
    after Micikevicius et al., arXiv:2209.05433. The fnuz formats: Noune et al.,
    arXiv:2206.02915, as in LLVM's ``APFloat``. MX: OCP Microscaling Formats Specification,
    version 1.0, tables 1 to 5 and section 5.4.1 (E8M0). NVFP4: CUTLASS, "Blackwell SM100
    GEMMs", "Blackwell Block Scaled Narrow Precision Data Types" (``nv_float4_t``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from ampwatch.numerics.exponents import times_power_of_two

if TYPE_CHECKING:
    from collections.abc import Iterable


class FormatFamily(Enum):
    """Formats that are used for the same purpose. TF32 is float32 to the user."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    HALF = "half"
    FLOAT8 = "float8"
    INT8 = "int8"
    FLOAT6 = "float6"
    FLOAT4 = "float4"


class Specials(Enum):
    """Bit patterns that are no finite numbers.

    ``IEEE``: the top exponent is inf and NaN. ``FN``: NaN is the one largest pattern, and there is
    no inf. ``FNUZ``: NaN takes the place of the negative zero, and there is no inf. ``NONE``:
    every pattern is a finite number. ``INTEGER``: likewise, and numbers are multiples of one step:
    all below 1 are subnormal, as integers lose precision from there down.
    """

    IEEE = "ieee"
    FN = "fn"
    FNUZ = "fnuz"
    NONE = "none"
    INTEGER = "integer"


BLOCK_SCALED = "mx"
"""The label of every block-scaled format in names of kernels, in peaks and in metrics."""


@dataclass(frozen=True, slots=True)
class ScaleBlock:
    """Elements that share a scale.

    Attributes:
        elements: How many they are.
        scale: The format of the scale.
    """

    elements: int
    scale: FloatFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatFormat:
    """A binary floating-point format, with rounding to nearest even.

    Attributes:
        name: What metrics, findings and pages call it: the name of the dtype in PyTorch, for
            those that are one.
        family: What it is used for.
        exponent_bits: Bits of the exponent.
        mantissa_bits: Bits of the mantissa that are stored.
        specials: Which bit patterns are no finite numbers.
        sign_bits: 1; 0 for a format of scales, which has neither zero nor subnormal numbers.
        stored_bits: Of an element in memory, where they are not ``bits``; TF32 lies in float32.
        torch_name: Name of the dtype in PyTorch that holds elements; empty if there is none.
        profiler_name: What torch.profiler calls that dtype, in lower case, where that is not
            ``c10::`` and its name.
        alignment: Number that dimensions of a matmul have to be multiples of for full-speed
            tensor-core kernels; 0 if no tensor core multiplies the format. Unit: elements.
        kernel_words: How names of kernels spell it between underscores.
        cpp_types: How names of kernels spell it among template arguments, without leading
            underscores.
        cpu_flags: Flags of Linux for x86 and Arm that mean arithmetic in it, not only conversion.
        block: Elements that share a scale, and the scale's format; ``None`` if elements have none.
        is_offered: Whether the page offers it as a what-if.
        is_candidate: Whether gradients are held against it for the metrics.
        bits: Sign, exponent and mantissa.
        bias: What the stored exponent exceeds the real one by.
        max_pattern: Bit pattern of the largest finite number, without the sign.
        max: Largest finite number.
        overflow_from: Smallest magnitude in float64 that rounds to no finite number of the
            format; inf for float64 itself.
        min_normal: Smallest normal number.
        min_subnormal: Smallest number above zero.
        flush_at: Largest magnitude in float64 that rounds to zero, half of
            ``min_subnormal``; 0 for float64 itself, and for a format of scales.
        eps: Distance from 1 to the next larger number.
    """

    name: str
    family: FormatFamily
    exponent_bits: int
    mantissa_bits: int
    specials: Specials = Specials.IEEE
    sign_bits: int = 1
    stored_bits: int = 0
    torch_name: str = ""
    profiler_name: str = ""
    alignment: int = 0
    kernel_words: tuple[str, ...] = ()
    cpp_types: tuple[str, ...] = ()
    cpu_flags: frozenset[str] = frozenset()
    block: ScaleBlock | None = None
    is_offered: bool = False
    is_candidate: bool = False

    bits: int = field(init=False)
    bias: int = field(init=False)
    max_pattern: int = field(init=False)
    max: float = field(init=False)
    overflow_from: float = field(init=False)
    min_normal: float = field(init=False)
    min_subnormal: float = field(init=False)
    flush_at: float = field(init=False)
    eps: float = field(init=False)

    def __post_init__(self) -> None:
        """Derive the limits from the bits."""
        for name, value in self._derived().items():  # frozen: only object.__setattr__ can set them
            object.__setattr__(self, name, value)

    def _derived(self) -> dict[str, float]:
        mantissa_bits = self.mantissa_bits
        bits = self.sign_bits + self.exponent_bits + mantissa_bits
        # FNUZ formats have one exponent more below 1, in place of the one that IEEE reserves. Integers
        # have 1 as the only exponent that is stored.
        is_lower = self.specials in (Specials.FNUZ, Specials.INTEGER)
        bias = (1 << self.exponent_bits - 1) - (not is_lower)
        reserved = {Specials.IEEE: 1 << mantissa_bits, Specials.FN: 1}.get(self.specials, 0)
        largest = (1 << self.exponent_bits + mantissa_bits) - 1 - reserved  # as a bit pattern
        stored_exponent, fraction = divmod(largest, 1 << mantissa_bits)
        significand = (1 << mantissa_bits) + fraction
        step = stored_exponent - bias - mantissa_bits  # exponent of the distance of neighbours
        halfway = times_power_of_two(2 * significand + 1, step - 1)
        # The stored exponent 0 stands for subnormal numbers, but not in a format of scales.
        lowest = (1 if self.sign_bits else 0) - bias
        return {
            "stored_bits": self.stored_bits or bits,
            "bits": bits,
            "bias": bias,
            "max_pattern": largest,
            "max": math.ldexp(significand, step),
            # Halfway rounds to the even neighbour: back to max where the pattern of max is even.
            "overflow_from": halfway if largest % 2 else math.nextafter(halfway, math.inf),
            "min_normal": math.ldexp(1.0, lowest),
            "min_subnormal": math.ldexp(1.0, lowest - mantissa_bits),
            "flush_at": math.ldexp(1.0, lowest - mantissa_bits - 1) if self.sign_bits else 0.0,
            "eps": math.ldexp(1.0, -mantissa_bits),
        }

    @property
    def is_measured(self) -> bool:
        """Whether kernels measure tensors of it: elements that mean something without a scale."""
        return bool(self.torch_name) and self.block is None and bool(self.sign_bits)

    @property
    def has_infs(self) -> bool:
        """Whether the pattern after the largest number is inf."""
        return self.specials is Specials.IEEE

    @property
    def nan_is_negative_zero(self) -> bool:
        """Whether the pattern of the sign bit alone is NaN."""
        return self.specials is Specials.FNUZ

    @property
    def kernel_label(self) -> str:
        """The label in names of kernels, in peaks and in metrics: one for all formats of FP8."""
        if self.block is not None:
            return BLOCK_SCALED
        return self.family.value if self.family is FormatFamily.FLOAT8 else self.name


E8M0 = FloatFormat(
    name="float8_e8m0fnu",
    family=FormatFamily.FLOAT8,
    exponent_bits=8,
    mantissa_bits=0,
    specials=Specials.FN,
    sign_bits=0,
    torch_name="float8_e8m0fnu",
)
"""The scales of MX formats: powers of two from 2**-127 to 2**127, and NaN."""

_E4M3 = FloatFormat(
    name="float8_e4m3fn",
    family=FormatFamily.FLOAT8,
    exponent_bits=4,
    mantissa_bits=3,
    # 448 is the pattern below NaN. Casts gave NaN beyond it until they were made to saturate:
    # https://github.com/pytorch/pytorch/pull/178817
    specials=Specials.FN,
    torch_name="float8_e4m3fn",
    alignment=16,
    # Which of its formats is meant by "FP8" alone does not matter: they have one label.
    kernel_words=("e4m3", "fp8", "f8"),
    cpp_types=("float_e4m3_t", "float8_e4m3fn", "nv_fp8_e4m3"),
    is_offered=True,
    is_candidate=True,
)

_MX_BLOCK = ScaleBlock(32, E8M0)

# The sign of these scales is unused (CUTLASS: ``float_ue4m3_t``). Libraries add a float32 scale for
# the whole tensor, which shifts the exponents of all elements alike.
_NV_BLOCK = ScaleBlock(16, _E4M3)

# Alignments are 16 bytes (NVIDIA, "Deep Learning Performance: Matrix Multiplication", "Tensor Core
# Requirements"), but for FP6: the instructions that copy it from memory take 128 elements (CUTLASS,
# "Blackwell SM100 GEMMs", tables 2 and 3; 32 for FP4 is of the kinds mxf4 and mxf4nvf4).
_ROWS = (
    FloatFormat(
        name="float64",
        family=FormatFamily.FLOAT64,
        exponent_bits=11,
        mantissa_bits=52,
        torch_name="float64",
        profiler_name="double",
        kernel_words=("fp64", "f64"),
        cpp_types=("double",),
    ),
    FloatFormat(
        name="float32",
        family=FormatFamily.FLOAT32,
        exponent_bits=8,
        mantissa_bits=23,
        torch_name="float32",
        profiler_name="float",
        kernel_words=("fp32", "f32"),
        cpp_types=("float",),
    ),
    FloatFormat(
        name="tf32",
        family=FormatFamily.FLOAT32,
        exponent_bits=8,
        mantissa_bits=10,
        stored_bits=32,
        alignment=4,
        kernel_words=("tf32",),
        cpp_types=("tfloat32_t",),
    ),
    FloatFormat(
        name="float16",
        family=FormatFamily.HALF,
        exponent_bits=5,
        mantissa_bits=10,
        torch_name="float16",
        profiler_name="c10::half",
        alignment=8,
        kernel_words=("fp16", "f16", "half"),
        cpp_types=("half", "half_t"),
        cpu_flags=frozenset({"avx512_fp16", "amx_fp16", "asimdhp", "fphp"}),
        is_offered=True,
        is_candidate=True,
    ),
    FloatFormat(
        name="bfloat16",
        family=FormatFamily.HALF,
        exponent_bits=8,
        mantissa_bits=7,
        torch_name="bfloat16",
        alignment=8,
        kernel_words=("bf16", "bfloat16"),
        cpp_types=("bfloat16", "bfloat16_t", "nv_bfloat16", "hip_bfloat16"),
        cpu_flags=frozenset({"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16", "svebf16"}),
        is_offered=True,
        is_candidate=True,
    ),
    _E4M3,
    FloatFormat(
        name="float8_e5m2",
        family=FormatFamily.FLOAT8,
        exponent_bits=5,
        mantissa_bits=2,
        torch_name="float8_e5m2",
        alignment=16,
        kernel_words=("e5m2",),
        cpp_types=("float_e5m2_t", "float8_e5m2", "nv_fp8_e5m2"),
        is_offered=True,
        is_candidate=True,
    ),
    # The two of AMD's MI300; later GPUs multiply the formats of OCP.
    FloatFormat(
        name="float8_e4m3fnuz",
        family=FormatFamily.FLOAT8,
        exponent_bits=4,
        mantissa_bits=3,
        specials=Specials.FNUZ,
        torch_name="float8_e4m3fnuz",
        alignment=16,
        is_offered=True,
    ),
    FloatFormat(
        name="float8_e5m2fnuz",
        family=FormatFamily.FLOAT8,
        exponent_bits=5,
        mantissa_bits=2,
        specials=Specials.FNUZ,
        torch_name="float8_e5m2fnuz",
        alignment=16,
        is_offered=True,
    ),
    FloatFormat(
        name="mxfp8_e4m3",
        family=FormatFamily.FLOAT8,
        exponent_bits=4,
        mantissa_bits=3,
        specials=Specials.FN,
        torch_name="float8_e4m3fn",
        alignment=16,
        kernel_words=("mxf8", "mxfp8", "mxe4m3"),
        block=_MX_BLOCK,
    ),
    FloatFormat(
        name="mxfp8_e5m2",
        family=FormatFamily.FLOAT8,
        exponent_bits=5,
        mantissa_bits=2,
        torch_name="float8_e5m2",
        alignment=16,
        block=_MX_BLOCK,
    ),
    # For comparison: two's complement with six bits behind the point.
    FloatFormat(
        name="mxint8",
        family=FormatFamily.INT8,
        exponent_bits=1,
        mantissa_bits=6,
        specials=Specials.INTEGER,
        block=_MX_BLOCK,
    ),
    FloatFormat(
        name="mxfp6_e2m3",
        family=FormatFamily.FLOAT6,
        exponent_bits=2,
        mantissa_bits=3,
        specials=Specials.NONE,
        alignment=128,
        block=_MX_BLOCK,
    ),
    FloatFormat(
        name="mxfp6_e3m2",
        family=FormatFamily.FLOAT6,
        exponent_bits=3,
        mantissa_bits=2,
        specials=Specials.NONE,
        alignment=128,
        block=_MX_BLOCK,
    ),
    FloatFormat(
        name="mxfp4",
        family=FormatFamily.FLOAT4,
        exponent_bits=2,
        mantissa_bits=1,
        specials=Specials.NONE,
        torch_name="float4_e2m1fn_x2",
        alignment=32,
        kernel_words=("mxfp4", "mxe2m1", "e2m1"),
        block=_MX_BLOCK,
    ),
    FloatFormat(
        name="nvfp4",
        family=FormatFamily.FLOAT4,
        exponent_bits=2,
        mantissa_bits=1,
        specials=Specials.NONE,
        torch_name="float4_e2m1fn_x2",
        alignment=32,
        kernel_words=("nvfp4",),
        block=_NV_BLOCK,
    ),
)

FORMATS: dict[str, FloatFormat] = {fmt.name: fmt for fmt in _ROWS}
"""Every format by its name, from the one with most bits to the one with fewest."""

PLAIN = tuple(fmt for fmt in _ROWS if fmt.block is None)
"""The formats whose elements have no scale: what a dtype of PyTorch, or an op, can be in."""

BLOCKS = tuple(dict.fromkeys(fmt.block for fmt in _ROWS if fmt.block is not None))
"""The ways to share a scale."""

SCALES = tuple(dict.fromkeys(block.scale for block in BLOCKS))
"""The formats of scales; that of NVFP4 is one of elements as well."""

MAX_LOW_BITS = 16
"""Bits up to which a format is one of low precision: what autocast asks tensor cores for."""

HALF = tuple(fmt.name for fmt in PLAIN if fmt.family is FormatFamily.HALF)
"""The formats of 16 bits, in which models and optimizers are kept to save memory."""

OF_TRAINING = tuple(fmt for fmt in PLAIN if fmt.family in (FormatFamily.FLOAT32, FormatFamily.HALF))
"""The formats of every mixed-precision training."""


def narrowest_half(names: Iterable[str]) -> FloatFormat | None:
    """Return the format of 16 bits with the smallest range among these dtypes, if any is one."""
    return min((FORMATS[n] for n in HALF if n in names), key=lambda fmt: fmt.max, default=None)


def format_of_gradient(dtype: str, autocast: FloatFormat | None) -> FloatFormat | None:
    """Return the format that decides what a gradient loses; ``None`` if it is not known.

    Gradients of parameters are mostly held in float32, where nothing can be seen of what was lost
    on the way: they are held against the format of autocast, unless their own is narrower.

    Args:
        dtype: Name of the dtype of the gradient.
        autocast: The format of autocast; ``None`` without one.
    """
    formats = [fmt for fmt in (FORMATS.get(dtype), autocast) if fmt is not None]
    return min(formats, key=lambda fmt: fmt.max, default=None)


def kernel_label(dtype: str) -> str:
    """Return what kernels and peaks call a dtype of an op; the name itself of an unknown one."""
    fmt = FORMATS.get(dtype)
    return dtype if fmt is None else fmt.kernel_label
