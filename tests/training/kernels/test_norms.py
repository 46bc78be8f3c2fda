"""The norms of a kernel, and the slow reference of its histograms, against plain Python."""

from __future__ import annotations

import math

import pytest
import torch

from ampwatch.training.kernels.norms import norms_of
from tests.training.kernels import oracle, reference
from tests.training.kernels.patterns import SMALL, small_dtypes


@pytest.mark.parametrize("order", [2.0, math.inf])
def test_norms_are_those_of_float64_whatever_the_dtype(order: float) -> None:
    """Also of float16, where neither the squares nor the norm itself fit into the dtype."""
    tensors = [
        torch.full((3, 5), 6e4, dtype=torch.float16),
        torch.randn(7).bfloat16(),
        torch.randn(2, 2, dtype=torch.float64),
        torch.randn(4, requires_grad=True),
    ]
    alone = [norms_of([tensor], order).item() for tensor in tensors]
    assert norms_of(tensors, order).tolist() == alone
    for given in (tensors, tensors[:1], tensors[2:3]):
        found = norms_of(given, order)

        assert found.dtype is torch.float32
        assert not found.requires_grad
        assert found.tolist() == pytest.approx(
            [torch.linalg.vector_norm(t.detach().double(), order).item() for t in given], rel=1e-6
        )


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
