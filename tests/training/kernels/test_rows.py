"""The layout of a row, and how it is read."""

from __future__ import annotations

import math
import struct

import pytest

from ampwatch.numerics.encodings import DTYPES, ENCODINGS
from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.training.kernels import rows
from tests.training.kernels.oracle import FLOAT8, all_patterns, exponent, values

ONE, THREE = 0x3F800000, 0x40400000  # keys of float32


def _row(
    bins: dict[int, int], tail: tuple[int, int, int, int], amax_key: int, amin_key: int
) -> bytes:
    counts = [bins.get(e, 0) for e in range(-191, 193)]
    return struct.pack("=384I4Iqq", *counts, *tail, amax_key, amin_key)


def test_a_row_is_read_back_field_by_field() -> None:
    """Bins from the first to the last that is not empty, gaps included."""
    row = _row({0: 4, 2: 2**32 - 1}, (1, 2, 3, 5), THREE, ONE)

    assert rows.decode(row, "float32", 77) == ExponentHistogram(
        0, (4, 0, 2**32 - 1), 1, 2, 3, 5, 3.0, 1.0, 77
    )


def test_the_largest_magnitude_may_lie_above_the_bins() -> None:
    """In a row of a subsample the bins end where the counts end."""
    row = _row({0: 4}, (0, 0, 0, 0), THREE, ONE)

    histogram = rows.decode(row, "float32", 10)

    assert (histogram.first, histogram.counts, histogram.amax) == (0, (4,), 3.0)


def test_a_subsample_may_hold_zeros_only() -> None:
    """Then there are no bins, and no smallest magnitude."""
    row = _row({}, (9, 0, 0, 0), THREE, rows.NO_AMIN)

    assert rows.decode(row, "float32", 10) == ExponentHistogram(0, (), 9, amax=3.0, numel=10)


def test_a_row_of_zero_words_is_a_histogram_of_nothing() -> None:
    """A closed gate leaves zero words."""
    histogram = rows.decode(bytes(rows.ROW_BYTES), "float16", 10)

    assert histogram == ExponentHistogram(numel=10)
    assert histogram.is_subsample


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


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_can_be_read(dtype: str) -> None:
    """The largest and the smallest number of each come back exactly."""
    encoding = ENCODINGS[dtype]
    high, low = encoding.bin(encoding.max_key), encoding.bin(1)
    row = _row({low: 1, high: 1}, (0, 0, 0, 0), encoding.max_key, 1)

    histogram = rows.decode(row, dtype, 2)

    assert (histogram.amax, histogram.amin) == (encoding.value(encoding.max_key), encoding.value(1))
    assert histogram.by_exponent() == {low: 1, high: 1}
