"""The slow reference of a kernel's histograms, against plain Python."""

from __future__ import annotations

import torch

from tests.training.kernels import oracle, reference
from tests.training.kernels.patterns import SMALL, small_dtypes


@small_dtypes
def test_every_pattern_is_counted_as_in_plain_python(dtype: str) -> None:
    """All 256 or 65536 of them."""
    tensor = oracle.all_patterns(dtype)

    assert dtype in SMALL
    assert reference.histogram(tensor) == oracle.histogram(oracle.values(tensor))


def test_any_shape_and_layout_will_do() -> None:
    """A transposed, a strided and an expanded view, a scalar and nothing."""
    matrix = torch.randn(6, 4)

    for view in (matrix.t(), matrix[:, ::2], matrix[:1].expand(5, 4), matrix[0, 0], matrix[:0]):
        assert reference.histogram(view) == oracle.histogram(oracle.values(view))
