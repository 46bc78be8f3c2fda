"""Casts to block-scaled formats, foretold from the distances of ``blocks``.

What is flushed to zero is exact for the formats of OCP's Microscaling: their scales are powers of two.
The scale of NVFP4 is the largest magnitude itself, over 6, so the limit lies inside a distance: there
the answer is an estimate between two bounds.

The signal-to-quantisation-noise ratio (SQNR) is an estimate. It takes values to be spread within a
distance as they are from one distance to the next, and the blocks of a level to be alike.
``SQNR_ERROR_DB`` says how far off it is on tensors of trainings.

Source:
    Scales of MX: OCP Microscaling Formats Specification, version 1.0, section 6.3 (the exponent of
    the scale is that of the largest magnitude less that of the largest number of the format; what
    is beyond that number saturates). NVFP4: NVIDIA, "Pretraining Large Language Models with NVFP4",
    arXiv:2509.25149, appendix B (scale of a block: its largest magnitude over 6, in E4M3, after a
    scale of the tensor in float32 that brings its largest magnitude to 6 * 448).
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

from msgspec import Struct

from ampwatch.numerics.blocks import (
    NUM_DISTANCES,
    NUM_LEVELS,
    NUM_MANTISSAS,
    BlockLevel,
    floor_exponent,
)
from ampwatch.numerics.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ampwatch.numerics.blocks import BlockHistogram
    from ampwatch.numerics.exponents import ExponentHistogram
    from ampwatch.numerics.formats import FloatFormat

SQNR_ERROR_DB = 1.25
"""How far the estimated SQNR is from that of a real cast, at most, of tensors of trainings with at least
``MIN_BLOCKS`` blocks, whose values are not few and the same (as the pixels of a picture are). Of the 360
casts of ``tests/numerics/test_block_casts.py`` to formats of MX all are within 1 dB, 1.04 dB is the
largest of 60 to NVFP4. Unit: dB."""

MIN_BLOCKS = 64
"""Blocks from which on an estimate of the SQNR has its stated error; with fewer, single values decide."""

MAX_SLOPE = 4.0
"""Ratio of densities within half a distance that is still believed to be smooth."""

_CELLS = 16
"""Parts of equal width that a distance is cut into."""

_POINTS = 9
"""Values of each part for which rounding is computed: odd, so that they are at any power-of-two step
from its multiples by all of 9 different distances."""


class BlockOutcome(Struct, frozen=True):
    """What a cast to a block-scaled format does to the elements of measured blocks.

    Attributes:
        flushed: Elements that are not zero and become zero; an estimate, but exact for most formats of MX.
        nonzero: Elements that are not zero before the cast.
        sqnr_db: Estimated signal-to-quantisation-noise ratio; inf without noise, NaN without
            elements. Unit: dB.
    """

    flushed: float
    nonzero: int
    sqnr_db: float

    @property
    def flushed_share(self) -> float:
        """Elements that become zero among those that are not zero; 0 if there are none."""
        return self.flushed / self.nonzero if self.nonzero else 0.0


def cast_blocks(
    blocks: BlockHistogram, fmt: FloatFormat, histogram: ExponentHistogram | None = None
) -> BlockOutcome:
    """Foretell a cast of all measured blocks to a format.

    Args:
        blocks: The distances, in blocks as large as the format's.
        fmt: A block-scaled format.
        histogram: The exponents of the same tensors, which tell how loud the last level is; without
            them its blocks are taken to be as loud as they can be.

    Raises:
        ValueError: If the format has no blocks, or blocks of another size.

    Cost: about 1 ms; the first time for a format some 50 ms.
    """
    if fmt.block is None or fmt.block.elements != blocks.size:
        expected = "a block-scaled format" if fmt.block is None else f"{fmt.block.elements}"
        msg = f"expected blocks as {fmt.name} has them ({expected}), got blocks of {blocks.size}"
        raise ValueError(msg)
    total = _Totals()
    loud = 0.0  # energy of all levels but the last
    for number, level in enumerate(blocks.levels):
        if not level.blocks:
            continue
        of_level = _of_level(level, fmt)
        energy = of_level.signal * 4.0**-number
        if number < NUM_LEVELS - 1:
            loud += energy
        elif histogram is not None:
            energy = _rest(blocks, histogram, loud, energy)
        total.add(of_level, energy / of_level.signal)
    return total.outcome(blocks, fmt)


def cast_to_all(
    measured: Iterable[BlockHistogram], histogram: ExponentHistogram | None = None
) -> dict[str, BlockOutcome]:
    """Foretell casts to all block-scaled formats, by their names.

    Args:
        measured: The distances, in blocks of each size that was measured.
        histogram: The exponents of the same tensors, as for ``cast_blocks``.

    Returns:
        What becomes of them; nothing of formats whose blocks were not measured or hold zeros alone.

    Cost: some 20 ms, most of it for NVFP4.
    """
    by_size = {blocks.size: blocks for blocks in measured if blocks.nonzero}
    return {
        fmt.name: cast_blocks(by_size[fmt.block.elements], fmt, histogram)
        for fmt in FORMATS.values()
        if fmt.block is not None and fmt.block.elements in by_size
    }


def _rest(
    blocks: BlockHistogram, histogram: ExponentHistogram, loud: float, at_most: float
) -> float:
    """Return the energy of the blocks of the last level: what the other levels leave of the whole."""
    bins = histogram.by_exponent()
    # Values that are spread evenly in a bin from 2**(e - 1) to 2**e have a mean square of 7/12 * 4**e.
    whole = sum(count * math.ldexp(7 / 12, 2 * (e - blocks.top)) for e, count in bins.items())
    sampled = blocks.nonzero / histogram.nonzero if histogram.nonzero else 0.0
    return min(max(whole * sampled - loud, at_most / 4**4), at_most)


def _of_level(level: BlockLevel, fmt: FloatFormat) -> _Totals:
    """Return the sums over a level, in units of the power of two below the largest of a block."""
    others = _others(level)
    spread = [cells_of(others, distance) for distance in range(NUM_DISTANCES)]
    total = _Totals()
    if _is_power_of_two(fmt):
        spread[0] = _below_maxima(level, others[0])
        total.add_cells(spread, _table(fmt, 0.0), 1.0)
    else:
        # Elements next to the largest are the more, the larger it is.
        weights = [count * (part + 0.5) for part, count in enumerate(level.maxima)]
        for part, count in enumerate(level.maxima):
            if not count:
                continue
            alone = BlockLevel(maxima=tuple(int(n == part) for n in range(NUM_MANTISSAS)))
            near = others[0] * weights[part] / sum(weights)
            table = _table(fmt, 1 + (part + 0.5) / NUM_MANTISSAS)
            total.add_cells([_below_maxima(alone, near)], table, 1.0)
            total.add_cells([[], *spread[1:]], table, count / level.blocks)
    maxima = _table(fmt, 0.0 if _is_power_of_two(fmt) else 1.0).maxima
    for part, count in enumerate(level.maxima):
        signal, noise = maxima[part]
        total.signal += count * signal
        total.noise += count * noise
    return total


class _Totals(Struct):
    """Sums over elements; signal and noise in units of a power of two, squared."""

    signal: float = 0.0
    noise: float = 0.0
    flushed: float = 0.0

    def add_cells(self, spread: Sequence[Sequence[float]], table: _Table, weight: float) -> None:
        for of_distance, cells in zip(table.cells, spread, strict=False):
            for (signal, noise, flushed), count in zip(of_distance, cells, strict=False):
                if count:
                    self.signal += weight * count * signal
                    self.noise += weight * count * noise
                    self.flushed += weight * count * flushed

    def add(self, other: _Totals, loudness: float) -> None:
        self.signal += loudness * other.signal
        self.noise += loudness * other.noise
        self.flushed += other.flushed

    def outcome(self, blocks: BlockHistogram, fmt: FloatFormat) -> BlockOutcome:
        low, high = flushed_bounds(blocks, fmt)
        ratio = math.nan
        if blocks.nonzero:
            ratio = 10 * math.log10(self.signal / self.noise) if self.noise else math.inf
        return BlockOutcome(
            flushed=low if low == high else min(max(self.flushed, low), high),
            nonzero=blocks.nonzero,
            sqnr_db=ratio,
        )


def flushed_bounds(blocks: BlockHistogram, fmt: FloatFormat) -> tuple[int, int]:
    """Return how many elements become zero, at least and at most."""
    if _is_power_of_two(fmt):
        # x * 2**(emax - f) <= flush_at, and x <= 2**(f + 1 - d) at the upper end of a distance.
        first = _emax(fmt) - floor_exponent(fmt.flush_at) + 1
        if first < NUM_DISTANCES:
            return blocks.at_least(first), blocks.at_least(first)
        return 0, blocks.at_least(NUM_DISTANCES - 1)
    # The largest magnitude over fmt.max is the scale, and E4M3 rounds it by 1/16 at most.
    limit = fmt.flush_at / fmt.max
    low = math.floor(math.log2(limit * (15 / 16)))
    high = math.ceil(math.log2(2 * limit * (17 / 16)))
    return blocks.at_least(1 - low), blocks.at_least(1 - high)


def cells_of(others: Sequence[int], distance: int) -> list[float]:
    """Return how the elements of a distance from 1 on are spread over its cells, from the lowest up."""
    count = others[distance]
    if not count or not distance:
        return []
    here = _density(others, distance)
    below = _density(others, distance + 1) or here
    above = _density(others, distance - 1) or here
    low = min(max(math.sqrt(below / here), 1 / MAX_SLOPE), MAX_SLOPE) if here else 1.0
    high = min(max(math.sqrt(above / here), 1 / MAX_SLOPE), MAX_SLOPE) if here else 1.0
    steps = [(cell + 0.5) / _CELLS for cell in range(_CELLS)]
    # Exponential between what the neighbours say of the two ends.
    weights = [low ** (1 - 2 * s) if s < 0.5 else high ** (2 * s - 1) for s in steps]
    total = sum(weights)
    return [count * weight / total for weight in weights]


def _others(level: BlockLevel) -> list[int]:
    """Return the elements by distance without one largest element of each block."""
    # A largest magnitude that is a power of two has the distance 1; they cannot be distinguished from those
    # just above it, which are many more.
    counts = list(level.distances)
    maxima = level.blocks
    for distance in (0, 1):
        taken = min(counts[distance], maxima)
        counts[distance] -= taken
        maxima -= taken
    return counts


def _density(counts: Sequence[int], distance: int) -> float:
    """Return elements per width of the distance; 0 where it has no width of its own."""
    return math.ldexp(counts[distance], distance) if distance < NUM_DISTANCES - 1 else 0.0


def _below_maxima(level: BlockLevel, count: float) -> list[float]:
    """Return the cells of elements from 1 to 2, which are evenly spread below the largest of theirs."""
    weights = [0.0] * _CELLS
    for part, blocks in enumerate(level.maxima):
        for cell in range(part):
            weights[cell] += blocks
        weights[part] += blocks / 2
    total = sum(weights)
    return [count * weight / total for weight in weights] if total else []


class _Table(Struct, frozen=True):
    """What a cast does to a value, where the largest of its block has the exponent 0."""

    # of each distance and cell: mean square, mean squared error, share that becomes zero
    cells: tuple[tuple[tuple[float, float, float], ...], ...]
    # of largest magnitudes in each part of ``[1, 2)``: mean square, mean squared error
    maxima: tuple[tuple[float, float], ...]


@cache
def _table(fmt: FloatFormat, largest: float) -> _Table:
    """Return the table of a format.

    Args:
        fmt: The format.
        largest: Largest magnitude of a block, by which the scale is set; 0 where the scale is the
            power of two below.
    """
    scales = _scales(fmt, largest)
    cells = tuple(
        tuple(_of_cell(fmt, scales, distance, cell) for cell in range(_CELLS))
        for distance in range(NUM_DISTANCES)
    )
    maxima = tuple(_of_maxima(fmt, part) for part in range(NUM_MANTISSAS))
    return _Table(cells, maxima)


def _of_cell(
    fmt: FloatFormat, scales: Sequence[float], distance: int, cell: int
) -> tuple[float, float, float]:
    signal = noise = 0.0
    flushed = 0
    for point in range(_POINTS):
        step = (cell + (point + 0.5) / _POINTS) / _CELLS
        value = math.ldexp(1 + step, -distance)
        if value / scales[0] < fmt.flush_at / 2:  # zero whatever the scale is rounded to
            signal += len(scales) * value * value
            noise += len(scales) * value * value
            flushed += len(scales)
            continue
        for scale in scales:
            rounded = nearest(value / scale, fmt)
            signal += value * value
            noise += (value - rounded * scale) ** 2
            flushed += not rounded
    count = _POINTS * len(scales)
    return signal / count, noise / count, flushed / count


def _of_maxima(fmt: FloatFormat, part: int) -> tuple[float, float]:
    signal = noise = 0.0
    count = 0
    for point in range(_POINTS):
        value = 1 + (part + (point + 0.5) / _POINTS) / NUM_MANTISSAS
        for scale in _scales(fmt, 0.0 if _is_power_of_two(fmt) else value):
            rounded = nearest(value / scale, fmt)
            signal += value * value
            noise += (value - rounded * scale) ** 2
            count += 1
    return signal / count, noise / count


def _scales(fmt: FloatFormat, largest: float) -> list[float]:
    """Return scales of a block whose largest magnitude has the exponent 0."""
    if not largest:
        return [math.ldexp(1.0, -_emax(fmt))]
    block = fmt.block
    assert block is not None  # noqa: S101 - for mypy: only such formats come here
    # Where E4M3 rounds the scale depends on the scale of the tensor: all of them count the same.
    exact = largest / fmt.max
    phases = [2.0 ** (phase / _POINTS) for phase in range(_POINTS)]
    return [nearest(exact * 2**4 * phase, block.scale) / (2**4 * phase) for phase in phases]


def nearest(value: float, fmt: FloatFormat) -> float:
    """Return a magnitude rounded to nearest even in a format; beyond its largest number, that."""
    if value >= fmt.max:
        return fmt.max
    if not value:
        return 0.0
    _, exponent = math.frexp(max(value, fmt.min_normal))
    step = math.ldexp(fmt.eps, exponent - 1)
    return min(round(value / step) * step, fmt.max)


def _is_power_of_two(fmt: FloatFormat) -> bool:
    """Whether the scale of a block is a power of two."""
    return fmt.block is not None and not fmt.block.scale.mantissa_bits


def _emax(fmt: FloatFormat) -> int:
    """Return the exponent of the largest number of a format."""
    return floor_exponent(fmt.max)
