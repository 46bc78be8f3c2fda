"""The layout of a row, and how it is read."""

from __future__ import annotations

import math
import struct

import pytest

from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.training.kernels import rows
from tests.training.kernels.oracle import FLOAT8, all_patterns, exponent, values

ONE, THREE = 0x3F800000, 0x40400000  # keys of float32


def _row(
    bins: dict[int, int], tail: tuple[int, int, int, int], amax_key: int, amin_key: int
) -> bytes:
    counts = [bins.get(e, 0) for e in range(-191, 193)]
    return struct.pack("=384I4Iqq", *counts, *tail, amax_key, amin_key)


def test_the_largest_magnitude_may_lie_above_the_bins() -> None:
    """In a row of a subsample the bins end where the counts end."""
    row = _row({0: 4}, (0, 0, 0, 0), THREE, ONE)

    histogram = rows.decode(row, "float32", 10)

    assert (histogram.first, histogram.counts, histogram.amax) == (0, (4,), 3.0)


def test_a_subsample_may_hold_zeros_only() -> None:
    """Then there are no bins, and no smallest magnitude."""
    row = _row({}, (9, 0, 0, 0), THREE, rows.NO_AMIN)

    assert rows.decode(row, "float32", 10) == ExponentHistogram(0, (), 9, amax=3.0, numel=10)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", *FLOAT8])
def test_every_pattern_is_counted_in_the_word_of_what_it_is(dtype: str) -> None:
    """Each pattern of 8 and 16 bits is counted as PyTorch reads it."""

    def word(value: float) -> int:
        if math.isnan(value):
            return rows.NANS
        if math.isinf(value):
            return rows.POSITIVE_INFS if value > 0 else rows.NEGATIVE_INFS
        return exponent(abs(value)) + 191 if value else rows.ZEROS

    expected = [word(value) for value in values(all_patterns(dtype))]

    assert [rows.word(dtype, pattern) for pattern in range(len(expected))] == expected
