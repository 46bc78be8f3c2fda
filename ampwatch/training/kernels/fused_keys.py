"""Bit patterns as keys and positions, for all dtypes, in Triton.

A *key* is the magnitude of an element as the bits of the float32 of the same value, so that
one code serves all dtypes; float64 keeps its own 64 bits. The *position* of a key is its
exponent field, rounded up.

``KIND`` is the name of the dtype, but ``float8`` and, where the pattern of -0 is NaN,
``float8fnuz``. ``MANTISSA`` is its stored bits of the mantissa, and exponent fields of float32
are larger than its own by ``OFFSET``.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ANN001, ANN201, N803, PLR1714 - Triton has no types; constants are in capitals

import triton
import triton.language as tl

from ampwatch.numerics.exponents import MAX_EXPONENT, MIN_EXPONENT

LOWEST = tl.constexpr(MIN_EXPONENT)
HIGHEST = tl.constexpr(MAX_EXPONENT)


@triton.jit
def key_of(pattern, KIND: tl.constexpr, MANTISSA: tl.constexpr, OFFSET: tl.constexpr):
    """Return the keys of bit patterns; those of NaN and infinities are beyond ``MAX_KEY``."""
    if KIND == "float64":
        key = pattern & 0x7FFFFFFFFFFFFFFF
    elif KIND == "float32":
        key = pattern & 0x7FFFFFFF
    elif KIND == "bfloat16":
        key = (pattern.to(tl.uint32) << 16) & 0x7FFFFFFF
    elif KIND == "float16":
        # One instruction, and exact: as a float32 every float16 is a normal number.
        value = pattern.to(tl.float16, bitcast=True).to(tl.float32)
        key = value.to(tl.uint32, bitcast=True) & 0x7FFFFFFF
    else:
        magnitude = (pattern & 0x7F).to(tl.uint32)
        normal = (magnitude << (23 - MANTISSA)) + (OFFSET << 23)
        # As an integer, a subnormal number counts units of 2**(OFFSET - 126 - MANTISSA).
        units = magnitude.to(tl.float32).to(tl.uint32, bitcast=True)
        small = units - ((126 + MANTISSA - OFFSET) << 23)
        key = tl.where(magnitude < (1 << MANTISSA), tl.where(magnitude == 0, 0, small), normal)
        if KIND == "float8fnuz":
            key = tl.where(pattern == 0x80, 0x7FC00000, key)
        key = key.to(tl.uint32)
    return key


@triton.jit
def native(key, KIND: tl.constexpr, MANTISSA: tl.constexpr, OFFSET: tl.constexpr):
    """Return a key in the bits of its own dtype."""
    if KIND == "bfloat16":
        key = key >> 16
    elif KIND != "float64" and KIND != "float32":
        exponent = (key >> 23).to(tl.int32)
        normal = (key >> (23 - MANTISSA)) - (OFFSET << MANTISSA)
        missing = tl.minimum(tl.maximum(24 - MANTISSA + OFFSET - exponent, 0), 31)
        small = ((key & 0x7FFFFF) | 0x800000) >> missing.to(tl.uint32)
        key = tl.where(exponent > OFFSET, normal, small)
    return key


@triton.jit
def position_of(key, KIND: tl.constexpr, EXACT: tl.constexpr):
    """Return the position of keys; of keys of subnormal numbers only if ``EXACT``."""
    if KIND == "float64":
        position = ((key - 1) >> 52).to(tl.int32)
        position = tl.minimum(tl.maximum(position, LOWEST + 1022), HIGHEST + 1022)
    else:
        position = ((key - 1) >> 23).to(tl.int32)
        if EXACT and (KIND == "float32" or KIND == "bfloat16"):
            # Up to 2**23 a key is a count of units of 2**-149, exact as a float32.
            units = key.to(tl.float32).to(tl.int32, bitcast=True)
            position = tl.where(key <= 0x800000, ((units - 1) >> 23) - 149, position)
    return position
