"""Distances of elements from the largest of their block: the second measurement.

A block-scaled format shares a scale among the elements of a block, and sets it by the largest of
them. What becomes of an element so depends on how far it lies below that largest one, and on
nothing else: a loss scale changes neither.

*Distance* ``d`` of an element ``x`` of a block whose largest magnitude ``m`` lies in
``2**f <= m < 2**(f + 1)``: ``2**(f - d) < x <= 2**(f + 1 - d)``. The upper end belongs to the
distance, as it does to the bins of ``exponents``, and for the same reason: for a scale that is
``2**f`` times a constant, as those of OCP's MX formats are, what is flushed to zero is then known
exactly. The last distance stands for all beyond it.

Blocks are distinguished by how loud they are, since noise matters next to the values of the whole tensor:
*level* ``l`` holds the blocks whose ``f`` is ``l`` below that of the tensor, the last one all others.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable

BLOCK_SIZES = (16, 32)
"""Elements of a block: of NVFP4, and of the MX formats."""

NUM_LEVELS = 4
"""Levels that are distinguished; the last is "3 or more". Of 4 the error of an estimated SQNR is below
1 dB where one level has errors of 3 dB, as of the gradient of logits; 8 are no better."""

NUM_DISTANCES = 32
"""Distances that are distinguished; the last is "31 or more". Only E5M2 reaches further down, and what
is 2**-31 of the largest of its block adds nothing to a sum of products with 24 bits."""

NUM_MANTISSAS = 16
"""Parts of equal width of ``[1, 2)`` by which the largest magnitudes of blocks are counted."""

PART = 128
"""Elements next to one another that are measured of each stretch of a tensor."""

MAX_STRETCH = 4096
"""Elements of the longest stretch: at least one element in 32 is measured."""

MIDDLE_STRETCH = 1024
"""Elements of the longest stretch of tensors with fewer than ``16 * MANY_MEASURED`` elements."""

MIN_MEASURED = 2048
"""Elements of which no fewer are measured, if there are as many: 64 blocks of 32. Beside all blocks of
a tensor the SQNR by a sample is off by less than 0.5 dB in 95 % of 2400 casts of tensors of trainings, by less than
1 dB in 99 %, the share that becomes zero by less than 1.5 points in 99 %."""

MANY_MEASURED = 8192
"""Elements of which no fewer are measured where that is one in 8 or less: 256 blocks of 32."""


class BlockLevel(Struct, frozen=True):
    """Blocks whose largest magnitudes have the same exponent, or about the same.

    Attributes:
        distances: Elements that are not zero, by distance.
        maxima: Blocks by the mantissa of their largest magnitude, in parts of ``[1, 2)``.
    """

    distances: tuple[int, ...] = (0,) * NUM_DISTANCES
    maxima: tuple[int, ...] = (0,) * NUM_MANTISSAS

    @property
    def blocks(self) -> int:
        """Blocks of the level."""
        return sum(self.maxima)


class BlockHistogram(Struct, frozen=True):
    """The elements of the blocks of a tensor, or of several, by level and distance.

    Blocks with an element that is not finite are in none of these numbers, nor are elements behind
    the last whole block.

    Attributes:
        size: Elements of a block.
        top: Exponent of the largest magnitude of all: that of the power of two at or below it.
        levels: ``NUM_LEVELS`` of them, the loudest first.
        zero_blocks: Blocks of nothing but zeros.
    """

    size: int
    top: int = 0
    levels: tuple[BlockLevel, ...] = (BlockLevel(),) * NUM_LEVELS
    zero_blocks: int = 0

    @property
    def blocks(self) -> int:
        """Blocks that were measured."""
        return self.zero_blocks + self.filled_blocks

    @property
    def filled_blocks(self) -> int:
        """Blocks that were measured and hold something besides zeros."""
        return sum(level.blocks for level in self.levels)

    @property
    def distances(self) -> tuple[int, ...]:
        """Elements that are not zero, by distance, of all levels."""
        return _sum(level.distances for level in self.levels)

    @property
    def nonzero(self) -> int:
        """Elements that are not zero."""
        return sum(sum(level.distances) for level in self.levels)

    def at_least(self, distance: int) -> int:
        """Return how many elements have at least this distance, of those that are distinguished."""
        return sum(self.distances[max(distance, 0) :])

    def shifted(self, exponent: int) -> BlockHistogram:
        """Return the histogram of all values times ``2**exponent``: only ``top`` is another."""
        return BlockHistogram(self.size, self.top + exponent, self.levels, self.zero_blocks)


def merged_blocks(histograms: Iterable[BlockHistogram], size: int) -> BlockHistogram:
    """Return the histogram of the blocks of several tensors together.

    What is quiet beside the loudest tensor comes to lie in its levels.

    Args:
        histograms: Of any sizes.
        size: The size that is wanted, one of ``BLOCK_SIZES``.
    """
    parts = [h for h in histograms if h.size == size and h.blocks]
    if len(parts) == 1:
        return parts[0]
    top = max((h.top for h in parts if h.filled_blocks), default=0)
    by_level: list[list[BlockLevel]] = [[] for _ in range(NUM_LEVELS)]
    for part in parts:
        for number, level in enumerate(part.levels):
            if level.blocks:
                by_level[min(number + top - part.top, NUM_LEVELS - 1)].append(level)
    levels = tuple(
        BlockLevel(_sum(x.distances for x in held), _sum(x.maxima for x in held))
        if held
        else BlockLevel()
        for held in by_level
    )
    return BlockHistogram(size, top, levels, sum(h.zero_blocks for h in parts))


def stretch_of(numel: int) -> int:
    """Return of how many elements of a tensor one part is measured; ``PART`` where all are.

    Args:
        numel: Elements of the tensor.
    """
    middle = min(numel * PART // MIN_MEASURED, MIDDLE_STRETCH)
    longest = min(numel * PART // MANY_MEASURED, MAX_STRETCH)
    most = max(middle, longest, PART)
    return 1 << most.bit_length() - 1


def part_of(number: int, parts: int) -> int:
    """Return which part of a stretch is measured.

    It changes from stretch to stretch, so that no column of a matrix is left out whatever its
    width: always the first would be the same eighth of the channels.

    Args:
        number: Index of the stretch in the tensor.
        parts: Parts of a stretch, a power of two from 2 to 2**16.

    Source: Knuth, The Art of Computer Programming, volume 3, section 6.4 (Fibonacci hashing).
    """
    return (number * 0x9E3779B1 & 0xFFFFFFFF) >> 16 & parts - 1


def floor_exponent(magnitude: float) -> int:
    """Return the exponent of the power of two at or below a magnitude above 0."""
    return math.frexp(magnitude)[1] - 1


def _sum(rows: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*rows, strict=True)))
