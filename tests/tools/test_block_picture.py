"""The picture of block formats shows what casts do."""

from __future__ import annotations

import math

import pytest
import torch

from ampwatch.numerics.formats import FORMATS
from tests.numerics.block_oracle import quantised
from tools.pictures.drawing import OF_BLOCKS, blocks, flushed_from
from tools.pictures.training import BLOCK, below_largest, measured


def test_elements_are_counted_below_the_largest_of_their_row() -> None:
    """Element by element, in plain Python; powers of two are the upper ends of their bins."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(64, BLOCK, generator=generator) * torch.exp2(
        torch.randint(-9, 9, (64, 1), generator=generator)
    )
    rows[3, 4], rows[5] = 0.0, torch.exp2(-torch.arange(BLOCK, dtype=torch.float32))
    expected: dict[int, int] = {}
    for row in rows.tolist():
        unit = 2.0 ** math.floor(math.log2(max(map(abs, row))))
        for value in row:
            if value:
                distance = -math.ceil(math.log2(abs(value) / unit))
                expected[distance] = expected.get(distance, 0) + 1

    assert below_largest(rows) == expected


@pytest.mark.parametrize("name", OF_BLOCKS)
def test_what_is_left_of_a_line_becomes_zero(name: str) -> None:
    """And nothing else does, in a block that is really cast."""
    distance = flushed_from(FORMATS[name])
    block = torch.ones(BLOCK, dtype=torch.float64)
    block[1:3] = torch.tensor([2.0**-distance, 2.0**-distance * 1.01])

    cast = quantised(block, name)
    assert (cast == 0).tolist() == [index == 1 for index in range(BLOCK)]


def test_the_shares_are_those_of_the_training() -> None:
    """Both parts of the picture, in words for who does not see it."""
    kept = measured()
    counts = {int(distance): number for distance, number in kept["below_block"].items()}
    share = sum(n for d, n in counts.items() if d >= 4) / sum(counts.values())

    drawn = blocks(kept)
    assert f"with a scale for each block of 32 mxfp4 {share:.1%}" in drawn
    assert sum(kept["below_block"].values()) == sum(kept["below_tensor"].values())
