"""Bit patterns worth trying."""

from __future__ import annotations

import struct

import pytest
from hypothesis import strategies as st

from tests.training.kernels.oracle import FLOAT8

SMALL = ("float16", "bfloat16", *FLOAT8)
small_dtypes = pytest.mark.parametrize("dtype", SMALL)

_NUMBERS = (0.0, 1.0, 2.0**-25, 65504.0, 65519.99, 65520.0, 2.0**-126, 2.0**-149, float("inf"))
_BOUNDARIES_32 = [struct.unpack("I", struct.pack("f", x))[0] for x in _NUMBERS]
_BOUNDARIES_64 = [struct.unpack("Q", struct.pack("d", x))[0] for x in _NUMBERS]


def _around(boundaries: list[int], sign: int) -> st.SearchStrategy[int]:
    near = [b + d for b in boundaries for d in (-1, 0, 1) if b + d >= 0]
    return st.sampled_from([*near, *(b | sign for b in near)])


# Powers of two, exactly: the bins end there, the upper end included.
PATTERNS_32 = st.one_of(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**23),
    st.integers(0, 511).map(lambda n: n << 23),
    _around(_BOUNDARIES_32, 1 << 31),
)
PATTERNS_64 = st.one_of(
    st.integers(0, 2**64 - 1),
    st.integers(0, 4095).map(lambda n: n << 52),
    _around(_BOUNDARIES_64, 1 << 63),
)
