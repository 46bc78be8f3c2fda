"""Bit layouts of the dtypes that can be measured. No torch here.

The *key* of an element is its bit pattern without the sign, as an integer. Keys of finite
elements are ordered like their magnitudes, so kernels compare keys and never floats: no
rounding, and no subnormal number is lost where the processor flushes them to zero.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

from ampwatch.numerics.exponents import MAX_EXPONENT, MIN_EXPONENT
from ampwatch.numerics.formats import FORMATS

if TYPE_CHECKING:
    from ampwatch.numerics.formats import FloatFormat

DTYPES = tuple(fmt.name for fmt in FORMATS.values() if fmt.is_measured)
"""The dtypes that can be measured, by the names of PyTorch; those of 8 bits come last."""


class Encoding(Struct, frozen=True):
    """The bits of one dtype.

    Attributes:
        bits: Of an element.
        mantissa_bits: Stored bits of the mantissa.
        unit: Exponent of the smallest subnormal number, whose key is 1.
        max_key: Key of the largest finite number; what is above is inf or NaN.
        has_infs: Whether the key above ``max_key`` is inf.
        nan_is_negative_zero: Whether the pattern of the sign bit alone is NaN.
    """

    bits: int
    mantissa_bits: int
    unit: int
    max_key: int
    has_infs: bool
    nan_is_negative_zero: bool

    def significand(self, key: int) -> tuple[int, int]:
        """Return ``(s, e)`` with the magnitude ``s * 2**e``, exactly, of a finite key."""
        stored_exponent, fraction = divmod(key, 1 << self.mantissa_bits)
        if not stored_exponent:
            return fraction, self.unit
        return fraction | 1 << self.mantissa_bits, self.unit + stored_exponent - 1

    def value(self, key: int) -> float:
        """Return the magnitude of a finite key."""
        return math.ldexp(*self.significand(key))

    def bin(self, key: int) -> int:
        """Return the exponent of the bin of a finite key above 0, of those that kernels fill."""
        mantissa_bits = self.mantissa_bits
        # A power of two belongs to the bin below, where it is the upper end: so exponents are
        # rounded up, unless all bits of the mantissa are 0.
        if key >> mantissa_bits:
            rounded_up = key + (1 << mantissa_bits) - 1 >> mantissa_bits
            exponent = self.unit + mantissa_bits - 1 + rounded_up
        else:
            exponent = self.unit + (key - 1).bit_length()
        # Only float64 leaves the axis, on either side.
        if MIN_EXPONENT <= exponent <= MAX_EXPONENT:
            return exponent
        return MIN_EXPONENT if exponent < 0 else MAX_EXPONENT


def encoding_of(fmt: FloatFormat) -> Encoding:
    """Return how the bits of a format are read."""
    return Encoding(
        bits=fmt.bits,
        mantissa_bits=fmt.mantissa_bits,
        unit=1 - fmt.bias - fmt.mantissa_bits,
        max_key=fmt.max_pattern,
        has_infs=fmt.has_infs,
        nan_is_negative_zero=fmt.nan_is_negative_zero,
    )


ENCODINGS: dict[str, Encoding] = {name: encoding_of(FORMATS[name]) for name in DTYPES}
