"""Slow and obvious: counts and roundings value by value, and casts made by PyTorch itself."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import chain

import torch
from hypothesis import strategies as st
from torch import Tensor

from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.numerics.formats import FORMATS, FloatFormat

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


E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M3 = (
    *[k / 8 for k in range(16)],
    *[k / 4 for k in range(8, 16)],
    *[k / 2 for k in range(8, 16)],
)
E3M2 = (*[k / 16 for k in range(8)], *[2.0**e * k for e in range(-3, 3) for k in range(4, 8)])
"""The numbers of the formats of 4 and of 6 bits, by pattern: OCP MX 1.0, tables 3 to 5."""

INT8 = tuple(k / 64 for k in range(128))
"""The magnitudes of MXINT8 but for -2, which has no counterpart above zero: OCP MX 1.0, section 5.3.4."""

NUMBERS = {"mxint8": INT8, "mxfp4": E2M1, "nvfp4": E2M1, "mxfp6_e2m3": E2M3, "mxfp6_e3m2": E3M2}
"""Values that no PyTorch casts to, by format."""


def cast_by_torch(values: Tensor, name: str) -> Tensor:
    """Cast float64 values to the format and back, with a scale of 1 where elements have one.

    PyTorch goes through float32 on the way to anything narrower. It has no tf32: there the
    13 bits that float32 has more are rounded away by hand. It casts to no format of 4 or 6 bits
    either: of these, the nearest number is looked up.
    """
    if name in NUMBERS:
        return cast_by_table(values, NUMBERS[name])
    if name != "tf32":
        return values.to(getattr(torch, FORMATS[name].torch_name)).double()
    bits = values.float().view(torch.int32).to(torch.int64)
    sign, magnitude = bits & ~0x7FFFFFFF, bits & 0x7FFFFFFF
    tie_to_even = magnitude >> 13 & 1
    magnitude = (magnitude + 0xFFF + tie_to_even) & ~0x1FFF
    return (sign | magnitude).to(torch.int32).view(torch.float32).double()


def cast_by_table(values: Tensor, numbers: Sequence[float]) -> Tensor:
    """Round magnitudes to the nearest of some numbers, to one at an even place in a tie.

    Beyond the last comes infinity, where another number would be if there was one more.
    """
    beyond = 2 * numbers[-1] - numbers[-2]
    known = torch.tensor([*numbers, beyond], dtype=torch.float64)
    halfway = (known[1:] + known[:-1]) / 2
    magnitudes = values.abs()
    at = torch.searchsorted(halfway, magnitudes)
    # A tie is found at the lower neighbour, and belongs there if its place is even.
    at += (at < len(halfway)) & (magnitudes == halfway[at.clamp(max=len(halfway) - 1)]) & (at % 2)
    known[-1] = math.inf
    return known[at].copysign(values).where(~values.isnan(), values)


def overflows_by_torch(values: Tensor, fmt: FloatFormat) -> Tensor:
    """Tell which values of float64 the format cannot hold.

    Whether a cast to float8_e4m3fn saturates depends on PyTorch, so there the limit decides.
    """
    if fmt.torch_name == "float8_e4m3fn":
        return values.abs() >= fmt.overflow_from
    return ~cast_by_torch(values, fmt.name).isfinite()
