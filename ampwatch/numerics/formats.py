"""The floating-point formats of training, and where each of them ends.

What follows from the bit layouts below, and is checked against PyTorch's own casts:

=================  ==========  =============  ==================  =====================
format             max         overflow from  smallest normal     smallest subnormal
=================  ==========  =============  ==================  =====================
float64            1.797e308   inf            2**-1022            2**-1074
float32            3.403e38    3.403e38       2**-126 = 1.18e-38  2**-149 = 1.40e-45
tf32               3.401e38    3.402e38       2**-126 = 1.18e-38  2**-136 = 1.15e-41
bfloat16           3.390e38    3.396e38       2**-126 = 1.18e-38  2**-133 = 9.18e-41
float16            65504       65520          2**-14 = 6.10e-5    2**-24 = 5.96e-8
float8_e5m2        57344       61440          2**-14 = 6.10e-5    2**-16 = 1.53e-5
float8_e5m2fnuz    57344       61440          2**-15 = 3.05e-5    2**-17 = 7.63e-6
float8_e4m3fn      448         above 464      2**-6 = 0.015625    2**-9 = 0.001953
float8_e4m3fnuz    240         248            2**-7 = 0.0078125   2**-10 = 0.000977
=================  ==========  =============  ==================  =====================

Source:
    float16, float32, float64: IEEE 754-2019, table 3.5. bfloat16 and TF32: IEEE layouts
    with 8 exponent bits and 7 and 10 mantissa bits (NVIDIA A100 architecture whitepaper).
    float8_e4m3fn, float8_e5m2: OCP 8-bit Floating Point Specification, revision 1.0, table 1,
    after Micikevicius et al., arXiv:2209.05433. The fnuz formats: Noune et al.,
    arXiv:2206.02915, as in LLVM's ``APFloat``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ampwatch.numerics.exponents import times_power_of_two


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A binary floating-point format, with rounding to nearest even.

    Attributes:
        name: Name of the dtype in PyTorch; ``tf32``, which is none, for itself.
        bits: Sign, exponent and mantissa. Unit: bits.
        mantissa_bits: Bits of the mantissa that are stored. Unit: bits.
        max: Largest finite number.
        overflow_from: Smallest magnitude in float64 that rounds to no finite number of the
            format; inf for float64 itself.
        min_normal: Smallest normal number.
        min_subnormal: Smallest number above zero.
        flush_at: Largest magnitude in float64 that rounds to zero, half of
            ``min_subnormal``; 0 for float64 itself.
        eps: Distance from 1 to the next larger number.
        on_overflow: What a cast makes of ``overflow_from`` and more, in words.
    """

    name: str
    bits: int
    mantissa_bits: int
    max: float
    overflow_from: float
    min_normal: float
    min_subnormal: float
    flush_at: float
    eps: float
    on_overflow: str


def _derive(
    name: str, exponent_bits: int, mantissa_bits: int, bias: int, reserved: int, on_overflow: str
) -> FloatFormat:
    """Derive the limits of a format.

    Args:
        name: Name of the format.
        exponent_bits: Bits of the exponent.
        mantissa_bits: Bits of the mantissa that are stored.
        bias: What the stored exponent exceeds the real one by.
        reserved: How many of the largest magnitudes, as bit patterns, are not finite numbers.
        on_overflow: What a cast makes of magnitudes beyond.
    """
    largest = (1 << exponent_bits + mantissa_bits) - 1 - reserved  # as a bit pattern
    stored_exponent, fraction = divmod(largest, 1 << mantissa_bits)
    significand = (1 << mantissa_bits) + fraction
    step = stored_exponent - bias - mantissa_bits  # exponent of the distance between neighbours
    halfway = times_power_of_two(2 * significand + 1, step - 1)
    # Halfway rounds to the even neighbour: back to max where the pattern of max is even.
    overflow_from = halfway if largest % 2 else math.nextafter(halfway, math.inf)
    smallest = 1 - bias - mantissa_bits
    return FloatFormat(
        name=name,
        bits=1 + exponent_bits + mantissa_bits,
        mantissa_bits=mantissa_bits,
        max=math.ldexp(significand, step),
        overflow_from=overflow_from,
        min_normal=math.ldexp(1.0, 1 - bias),
        min_subnormal=math.ldexp(1.0, smallest),
        flush_at=math.ldexp(1.0, smallest - 1),
        eps=math.ldexp(1.0, -mantissa_bits),
        on_overflow=on_overflow,
    )


def _ieee(name: str, exponent_bits: int, mantissa_bits: int) -> FloatFormat:
    """Derive a format laid out like those of IEEE 754: the top exponent is inf and NaN."""
    bias = (1 << exponent_bits - 1) - 1
    return _derive(name, exponent_bits, mantissa_bits, bias, 1 << mantissa_bits, "inf")


def _fnuz(name: str, exponent_bits: int, mantissa_bits: int) -> FloatFormat:
    """Derive a format without inf whose one NaN takes the place of the negative zero."""
    bias = 1 << exponent_bits - 1
    return _derive(name, exponent_bits, mantissa_bits, bias, 0, "NaN")


FORMATS: dict[str, FloatFormat] = {
    fmt.name: fmt
    for fmt in (
        _ieee("float64", 11, 52),
        _ieee("float32", 8, 23),
        _ieee("tf32", 8, 10),
        _ieee("bfloat16", 8, 7),
        _ieee("float16", 5, 10),
        _ieee("float8_e5m2", 5, 2),
        _fnuz("float8_e5m2fnuz", 5, 2),
        # No inf either, and NaN is the one largest pattern: 448 is the pattern below it. Casts
        # gave NaN until they were made to saturate: https://github.com/pytorch/pytorch/pull/178817
        _derive("float8_e4m3fn", 4, 3, 7, 1, "NaN or 448, by version of PyTorch and device"),
        _fnuz("float8_e4m3fnuz", 4, 3),
    )
}
"""Every format by its name, from the widest to the narrowest."""

HALF = ("float16", "bfloat16")
"""The formats of 16 bits, in which models and optimizers are kept to save memory."""
