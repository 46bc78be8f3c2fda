"""The layouts of rows: what kernels leave behind for one tensor. No torch here.

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

A row of the second measurement (``numerics.blocks``) is ``BLOCK_ROW_WORDS`` words, ``SIZE_WORDS`` for
each of ``BLOCK_SIZES``:

==========  ======================================================================
words       content
==========  ======================================================================
48 * level  32 words: elements by distance, from 0 on; then 16 words: blocks by the
            mantissa of their largest magnitude
192         blocks of nothing but zeros
==========  ======================================================================

It goes with the row of the first measurement of the same piece, whose largest magnitude is what
levels are counted from.
"""

from __future__ import annotations

import math
import struct

from ampwatch.numerics.blocks import (
    BLOCK_SIZES,
    NUM_DISTANCES,
    NUM_LEVELS,
    NUM_MANTISSAS,
    BlockHistogram,
    BlockLevel,
    floor_exponent,
)
from ampwatch.numerics.encodings import ENCODINGS
from ampwatch.numerics.exponents import MIN_EXPONENT, NUM_BINS, ExponentHistogram

LEVEL_WORDS = NUM_DISTANCES + NUM_MANTISSAS
ZERO_BLOCKS = NUM_LEVELS * LEVEL_WORDS
SIZE_WORDS = ZERO_BLOCKS + 1
BLOCK_ROW_WORDS = len(BLOCK_SIZES) * SIZE_WORDS
BLOCK_ROW_BYTES = 4 * BLOCK_ROW_WORDS

BLOCK_DTYPES = ("float32", "float16", "bfloat16")
"""Dtypes that are measured by blocks. Elements of 8 bits are rounded already, and float64 is no format
that anybody leaves for one of 4 bits."""

_ROW = struct.Struct(f"={BLOCK_ROW_WORDS}I")
_NOTHING = bytes(BLOCK_ROW_BYTES)
_EMPTY = (0,) * LEVEL_WORDS
_NO_LEVEL = BlockLevel()


def decode_blocks(row: bytes, histogram: ExponentHistogram) -> tuple[BlockHistogram, ...]:
    """Return what a row holds, for each of ``BLOCK_SIZES``.

    Args:
        row: ``BLOCK_ROW_BYTES`` bytes.
        histogram: The exponents of the same piece.

    Returns:
        The histograms; none if no block was measured.

    Cost:
        5 us; 0.1 us where no block was measured, as of a tensor that is smaller than one.
    """
    if row == _NOTHING:
        return ()
    words = _ROW.unpack(row)
    top = floor_exponent(histogram.amax) if histogram.amax else 0
    found = []
    for begin, size in zip(range(0, BLOCK_ROW_WORDS, SIZE_WORDS), BLOCK_SIZES, strict=True):
        levels = []
        for level in range(NUM_LEVELS):
            first = begin + level * LEVEL_WORDS
            held = words[first : first + LEVEL_WORDS]
            is_empty = held == _EMPTY
            of_level = BlockLevel(held[:NUM_DISTANCES], held[NUM_DISTANCES:])
            levels.append(_NO_LEVEL if is_empty else of_level)
        found.append(BlockHistogram(size, top, tuple(levels), words[begin + ZERO_BLOCKS]))
    return tuple(found)


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
