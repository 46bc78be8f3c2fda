"""The histogram of one tensor, slowly and by the book: the reference for every kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from ampwatch.numerics.encodings import ENCODINGS, Encoding
from ampwatch.numerics.exponents import MAX_EXPONENT, MIN_EXPONENT, ExponentHistogram

_INTEGERS = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


def histogram(tensor: Tensor) -> ExponentHistogram:
    """Return the exponents of ``tensor``.

    Args:
        tensor: Of a dtype in ``encodings.DTYPES``, strided, of any shape, on any device.

    Cost:
        Some twenty passes over copies of eight bytes per element, and several host syncs.
    """
    encoding = ENCODINGS[str(tensor.dtype).removeprefix("torch.")]
    flat = tensor.detach().contiguous().view(-1)
    patterns = flat.view(_INTEGERS[encoding.bits]).to(torch.int64)
    negative = patterns < 0
    keys = patterns & (1 << encoding.bits - 1) - 1
    is_zero = keys == 0
    is_finite = keys <= encoding.max_key
    if encoding.nan_is_negative_zero:
        is_finite &= ~(is_zero & negative)
        is_zero &= ~negative
    is_inf = (keys == encoding.max_key + 1) & encoding.has_infs
    finite = keys[is_finite & ~is_zero]
    first, counts = _count(finite, encoding)
    return ExponentHistogram(
        first,
        counts,
        zeros=int(is_zero.sum()),
        nans=int((~is_finite & ~is_inf).sum()),
        positive_infs=int((is_inf & ~negative).sum()),
        negative_infs=int((is_inf & negative).sum()),
        amax=encoding.value(int(finite.max())) if counts else 0.0,
        amin=encoding.value(int(finite.min())) if counts else float("inf"),
        numel=flat.numel(),
    )


def _count(keys: Tensor, encoding: Encoding) -> tuple[int, tuple[int, ...]]:
    """Return the exponent of the first bin and the bins, of finite keys above 0."""
    if not keys.numel():
        return 0, ()
    stored_exponent = keys >> encoding.mantissa_bits
    fraction = keys & (1 << encoding.mantissa_bits) - 1
    is_normal = stored_exponent > 0
    significand = fraction + (is_normal << encoding.mantissa_bits)
    unit = encoding.unit + torch.where(is_normal, stored_exponent - 1, 0)
    # The magnitude is significand * 2**unit. log2, rounded up, of an integer n is the number of
    # bits of n - 1; frexp has it, and integers are exact in float64 and never subnormal.
    bits = torch.frexp((significand - 1).to(torch.float64)).exponent
    exponents = (unit + bits).clamp(MIN_EXPONENT, MAX_EXPONENT)
    first = int(exponents.min())
    return first, tuple(torch.bincount(exponents - first).tolist())
