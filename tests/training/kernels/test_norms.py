"""Norms of many tensors in one call."""

from __future__ import annotations

import math

import pytest
import torch

from ampwatch.training.kernels.norms import norms_of


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
