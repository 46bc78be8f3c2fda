"""Slow and obvious: counts and roundings value by value, and casts made by PyTorch itself."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING

import torch
from hypothesis import strategies as st

from ampwatch.numerics.exponents import ExponentHistogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from ampwatch.numerics.formats import FloatFormat

BOUNDARIES = (
    2.0**-25,  # float16 flushes it, and nothing above
    2.0**-24,
    2.0**-14,
    448.0,
    464.0,
    65504.0,
    65519.99,  # the last two ends of float16
    65520.0,
    65536.0,
    2.0**-149,
    2.0**-134,
    2.0**127,
)
"""Values at which a cast changes what it does."""


def from_bits(bits: Sequence[int], dtype: torch.dtype = torch.float32) -> list[float]:
    """Read bit patterns as numbers of ``dtype``."""
    signed = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
    wide = torch.tensor(bits, dtype=torch.int64)
    return wide.to(signed[dtype]).view(dtype).double().tolist()


ALL_FLOAT16 = from_bits(range(1 << 16), torch.float16)
ALL_BFLOAT16 = from_bits(range(1 << 16), torch.bfloat16)

patterns = st.integers(0, 2**32 - 1) | st.integers(0, 2**23 - 1)  # the latter are subnormal
numbers = st.lists(patterns, min_size=1, max_size=12).map(from_bits)
numbers |= st.lists(st.sampled_from(BOUNDARIES), min_size=1, max_size=4)
float32_values = st.lists(numbers, max_size=4).map(lambda lists: list(chain(*lists)))
"""Lists of any float32 numbers: zeros, subnormals, infinities, NaN and boundaries among them."""


def exponent_of(value: float) -> int:
    """Return the smallest ``e`` with ``abs(value) <= 2**e``."""
    mantissa, exponent = math.frexp(abs(value))
    return exponent - (mantissa == 0.5)


def histogram_of(values: Iterable[float]) -> ExponentHistogram:
    """Count value by value."""
    values = list(values)
    finite = [abs(v) for v in values if math.isfinite(v)]
    bins = Counter(exponent_of(v) for v in finite if v)
    first, last = min(bins, default=0), max(bins, default=-1)
    return ExponentHistogram(
        first=first,
        counts=tuple(bins[e] for e in range(first, last + 1)),
        zeros=finite.count(0.0),
        nans=sum(math.isnan(v) for v in values),
        positive_infs=values.count(math.inf),
        negative_infs=values.count(-math.inf),
        amax=max(finite, default=0.0),
        amin=min((v for v in finite if v), default=math.inf),
        numel=len(values),
    )


def rounded(value: float, shift: int, fmt: FloatFormat) -> Fraction | None:
    """Round ``abs(value) * 2**shift`` exactly, to nearest even; None where it overflows."""
    exact = Fraction(abs(value)) * Fraction(2) ** shift
    if not exact:
        return exact
    binade = math.frexp(abs(value))[1] - 1 + shift
    lowest = math.frexp(fmt.min_normal)[1] - 1
    quantum = Fraction(2) ** (max(binade, lowest) - fmt.mantissa_bits)
    result = round(exact / quantum) * quantum  # Python rounds fractions half to even
    return result if result <= Fraction(fmt.max) else None


def cast_by_torch(values: Tensor, name: str) -> Tensor:
    """Cast float64 values to the format and back.

    PyTorch goes through float32 on the way to anything narrower. It has no tf32: there the
    13 bits that float32 has more are rounded away by hand.
    """
    if name != "tf32":
        return values.to(getattr(torch, name)).double()
    bits = values.float().view(torch.int32).to(torch.int64)
    sign, magnitude = bits & ~0x7FFFFFFF, bits & 0x7FFFFFFF
    tie_to_even = magnitude >> 13 & 1
    magnitude = (magnitude + 0xFFF + tie_to_even) & ~0x1FFF
    return (sign | magnitude).to(torch.int32).view(torch.float32).double()


def overflows_by_torch(values: Tensor, fmt: FloatFormat) -> Tensor:
    """Tell which values of float64 the format cannot hold.

    Whether a cast to float8_e4m3fn saturates depends on PyTorch, so there the limit decides.
    """
    if fmt.name == "float8_e4m3fn":
        return values.abs() >= fmt.overflow_from
    return ~cast_by_torch(values, fmt.name).isfinite()
