"""Bit patterns and what they stand for."""

from __future__ import annotations

import math

import pytest
import torch

from ampwatch.numerics.encodings import DTYPES, ENCODINGS
from tests.training.kernels.oracle import FLOAT8, TORCH_DTYPES, all_patterns, bits, exponent, values

SMALL = ["float16", "bfloat16", *FLOAT8]


@pytest.mark.parametrize("dtype", SMALL)
def test_every_finite_key_has_the_value_and_the_bin_of_its_element(dtype: str) -> None:
    """Value and bin agree with what PyTorch and ``frexp`` make of the same bits."""
    encoding = ENCODINGS[dtype]
    finite = values(all_patterns(dtype))[: encoding.max_key + 1]

    assert [encoding.value(key) for key in range(len(finite))] == finite
    assert [encoding.bin(key) for key in range(1, len(finite))] == list(map(exponent, finite[1:]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_key_is_the_largest_number(dtype: str) -> None:
    """The largest key is ``finfo.max``; the next key is not finite, or has the sign bit set."""
    encoding = ENCODINGS[dtype]

    assert encoding.value(encoding.max_key) == torch.finfo(TORCH_DTYPES[dtype]).max
    (following,) = values(bits([encoding.max_key + 1], dtype))
    assert not math.isfinite(following)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "number", [1.0, 2.0**-25, 65504.0, 2.0**-126, 2.0**-149, 3 * 2.0**-149, 1.5 * 2.0**-127]
)
def test_wide_keys_have_the_value_and_the_bin_of_their_element(dtype: str, number: float) -> None:
    """Normal and subnormal numbers, at and off powers of two."""
    integer = torch.int32 if dtype == "float32" else torch.int64
    key = int(torch.tensor(number, dtype=TORCH_DTYPES[dtype]).view(integer))

    assert ENCODINGS[dtype].value(key) == number
    assert ENCODINGS[dtype].bin(key) == exponent(number)


def test_bins_beyond_the_axis_are_those_at_its_ends() -> None:
    """Only float64 has numbers that small and that large."""
    encoding = ENCODINGS["float64"]

    assert encoding.bin(1) == -191
    assert encoding.bin(encoding.max_key) == 192
