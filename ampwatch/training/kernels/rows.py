"""The layout of a row: what a kernel leaves behind for one tensor. No torch here.

A row is ``ROW_WORDS`` words of 32 bits in the byte order of the machine:

=========  =========================================================================
words      content
=========  =========================================================================
0 to 383   elements per bin, from exponent ``MIN_EXPONENT`` on
384        zeros, of either sign
385        NaN
386, 387   +inf, -inf
388, 389   key (``encodings.py``) of the largest finite magnitude, 64 bits; 0 if none
390, 391   key of the smallest non-zero finite magnitude, 64 bits; ``NO_AMIN`` if none
=========  =========================================================================

Its size is a multiple of 8, so keys are aligned wherever the first row is.
"""

from __future__ import annotations

import math
import struct

from ampwatch.numerics.encodings import ENCODINGS
from ampwatch.numerics.exponents import MIN_EXPONENT, NUM_BINS, ExponentHistogram

ZEROS = NUM_BINS
NANS = NUM_BINS + 1
POSITIVE_INFS = NUM_BINS + 2
NEGATIVE_INFS = NUM_BINS + 3
AMAX_KEY = NUM_BINS + 4
AMIN_KEY = NUM_BINS + 6
ROW_WORDS = NUM_BINS + 8
ROW_BYTES = 4 * ROW_WORDS

NO_AMIN = 2**63 - 1

MAX_NUMEL = 2**30
"""Elements that a row can count; of a longer tensor, each piece has a row."""

_TAIL = struct.Struct("=4Iqq")


def decode(row: bytes, dtype: str, numel: int) -> ExponentHistogram:
    """Return the histogram that a row holds.

    Args:
        row: ``ROW_BYTES`` bytes.
        dtype: Name of the dtype of the measured tensor.
        numel: Elements of the measured tensor.

    Cost:
        2 us.
    """
    zeros, nans, positive_infs, negative_infs, amax, amin = _TAIL.unpack_from(row, 4 * ZEROS)
    encoding = ENCODINGS[dtype]
    first = 0
    counts: tuple[int, ...] = ()
    if 0 < amin < NO_AMIN:  # the keys say where the bins begin and end, which saves a search
        first = encoding.bin(amin)
        last = encoding.bin(amax)
        counts = struct.unpack_from(f"={last - first + 1}I", row, 4 * (first - MIN_EXPONENT))
        while not counts[-1]:  # the largest magnitude need not be in a subsample
            counts = counts[:-1]
    return ExponentHistogram(
        first,
        counts,
        zeros,
        nans,
        positive_infs,
        negative_infs,
        encoding.value(amax),
        encoding.value(amin) if counts else math.inf,
        numel,
    )


def word(dtype: str, pattern: int) -> int:
    """Return the word of the row in which a bit pattern of a dtype is counted."""
    encoding = ENCODINGS[dtype]
    negative, key = divmod(pattern, 1 << encoding.bits - 1)
    if key == 0:
        return NANS if negative and encoding.nan_is_negative_zero else ZEROS
    if key <= encoding.max_key:
        return encoding.bin(key) - MIN_EXPONENT
    if encoding.has_infs and key == encoding.max_key + 1:
        return NEGATIVE_INFS if negative else POSITIVE_INFS
    return NANS
