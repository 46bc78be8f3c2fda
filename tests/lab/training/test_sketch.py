"""Sketches: linear, alike everywhere, and good for the norm of a difference."""

from __future__ import annotations

import math

import pytest
import torch

from ampwatch.lab.tape.rows import NUM_BUCKETS
from ampwatch.lab.training.sketch import CHUNK, Sketcher


@pytest.mark.parametrize("numel", [1, 31, 4096, CHUNK + 77])
def test_the_norm_of_a_difference_follows_from_two_sketches(numel: int) -> None:
    """Within four standard errors of the norm that PyTorch computes of the difference itself."""
    drawn = torch.Generator().manual_seed(numel)
    a = torch.randn(numel, generator=drawn)
    b = a + 1e-3 * torch.randn(numel, generator=drawn)
    sketcher = Sketcher()

    sums = (sketcher.sketch(a) - sketcher.sketch(b))[:NUM_BUCKETS]

    ratio = float(sums.norm() / (a.double() - b.double()).norm())
    assert abs(ratio - 1) < 4 * math.sqrt(2 / NUM_BUCKETS) / 2


def test_the_square_of_the_norm_comes_along_and_leaves_out_what_is_not_finite() -> None:
    """As summed element by element, without NaN and infinities."""
    tensor = torch.tensor([3.0, math.nan, -4.0, math.inf])

    assert float(Sketcher().sketch(tensor)[NUM_BUCKETS]) == 25.0


def test_the_order_in_memory_is_of_no_importance() -> None:
    """A transposed copy of a transposed tensor has the sketch of the tensor."""
    tensor = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    other = tensor.t().contiguous().t()

    assert torch.equal(Sketcher().sketch(tensor), Sketcher().sketch(other))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
)
def test_every_dtype_has_a_sketch(dtype: torch.dtype) -> None:
    """Also integers and masks: a batch of words is told from another one."""
    tensor = torch.tensor([1, 1, 0, 0]).to(dtype)

    assert float(Sketcher().sketch(tensor)[NUM_BUCKETS]) == 2.0
    assert not torch.equal(Sketcher().sketch(tensor), Sketcher().sketch(tensor.flip(0)))


def test_no_random_number_is_drawn() -> None:
    """The random state is what it was."""
    before = torch.get_rng_state()
    Sketcher().sketch(torch.ones(9))

    assert torch.equal(torch.get_rng_state(), before)
