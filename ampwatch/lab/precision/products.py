"""Losses of a product of two matrices whose elements are cast, foretold from what was measured of each.

A matmul in a narrow format rounds its two operands and adds up their products in float32. The noise of
a sum of products is that of the one operand times the other, plus that of the other times the one. Where
the noise has nothing to do with the values, and that of one operand nothing with that of the other, the
ratios of noise to signal add up::

    1 / snr = 1 / snr_a + 1 / snr_b

That is an assumption, and a mean: an output that cancels to nearly nothing has more noise, relatively.

Casts to block-scaled formats are those of ``block_casts``. Others follow from exponents: a value is
rounded to a multiple of a step that is known from its exponent, and off by anything up to half of it.
Elements of FP8 have a scale for the whole tensor, as with current scaling: the largest power of two at
which nothing overflows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampwatch.numerics.block_casts import cast_blocks, cells_of
from ampwatch.numerics.blocks import NUM_DISTANCES
from ampwatch.numerics.formats import FormatFamily
from ampwatch.numerics.whatif import cast, fp8_scale, num_flushed
from ampwatch.wire.records import FORWARD, GRAD_INPUT, GRAD_WEIGHT, Operand

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ampwatch.numerics.blocks import BlockHistogram
    from ampwatch.numerics.exponents import ExponentHistogram
    from ampwatch.numerics.formats import FloatFormat


OPERANDS = {
    FORWARD: (Operand.INPUT, Operand.WEIGHT),
    GRAD_INPUT: (Operand.GRAD_OUTPUT, Operand.WEIGHT),
    GRAD_WEIGHT: (Operand.GRAD_OUTPUT, Operand.INPUT),
}
"""What each product multiplies."""

HEADROOM = 3
"""Exponent of how much larger values may become than they were measured before a format without scales
overflows: samples are of few steps, and the largest gradient of a hundred is a multiple of that of one."""


@dataclass(frozen=True, slots=True)
class CastLoss:
    """Loss of one tensor by a cast."""

    # signal-to-quantisation-noise ratio; inf without noise, as of nothing but zeros, -inf where
    # elements overflow, or would without room to grow. Unit: dB
    sqnr_db: float
    flushed_share: float  # elements that become zero among those that are not zero


def cast_loss(
    histogram: ExponentHistogram,
    blocks: Sequence[BlockHistogram],
    fmt: FloatFormat,
    headroom: int = HEADROOM,
) -> CastLoss | None:
    """Foretell what a tensor loses by a cast.

    Args:
        histogram: Its exponents, with the loss scale that it will have.
        blocks: Its blocks, of each size; none where they were not measured.
        fmt: The format.
        headroom: Exponent of how much larger values may become before a format without scales overflows.

    Returns:
        The loss; ``None`` if its blocks were not measured, and the format is block-scaled.

    Cost: about 1 ms for a block-scaled format, 20 us for others.
    """
    if not histogram.nonzero:
        return CastLoss(math.inf, 0.0)
    if fmt.block is None:
        shift = 0
        if fmt.family is FormatFamily.FLOAT8:
            shift = math.frexp(fp8_scale(histogram, fmt))[1] - 1
            headroom = 0  # the scale follows
        return _by_exponents(histogram, fmt, shift, headroom)
    size = fmt.block.elements
    measured = next((b for b in blocks if b.size == size and b.nonzero), None)
    if measured is None:
        return None
    outcome = cast_blocks(measured, fmt, histogram)
    return CastLoss(outcome.sqnr_db, outcome.flushed_share)


def _by_exponents(
    histogram: ExponentHistogram, fmt: FloatFormat, shift: int, headroom: int
) -> CastLoss:
    if cast(histogram, fmt, shift + headroom).overflow_high:
        return CastLoss(-math.inf, 0.0)
    lowest = math.frexp(fmt.min_normal)[1] - 1
    top = histogram.first + len(histogram.counts) - 1
    by_distance = [0, *reversed(histogram.counts), *[0] * NUM_DISTANCES]
    signal = noise = 0.0
    for distance, count in enumerate(by_distance):
        cells = cells_of(by_distance, distance) if count else []
        exponent = top + 1 - distance
        # In units of the end of the first bin: squares of float32 leave the range of float64.
        unit = 4.0 ** max(1 - distance, -500)
        energy = unit * sum(
            n * ((1 + (k + 0.5) / len(cells)) / 2) ** 2 for k, n in enumerate(cells)
        )
        signal += energy
        step = max(exponent + shift - 1, lowest) - fmt.mantissa_bits
        if exponent + shift < step:
            noise += energy  # at most half of the smallest number: flushed
        else:
            noise += count * 4.0 ** max(step - shift - top, -500) / 12
    ratio = 10 * math.log10(signal / noise) if noise else math.inf
    return CastLoss(ratio, num_flushed(histogram, fmt, shift) / histogram.nonzero)


def product_db(operands: Iterable[float]) -> float:
    """Return the ratio of signal to noise of a product, from those of its operands. Unit: dB."""
    noise = sum(10 ** (-ratio / 10) for ratio in operands)  # infinite for -inf
    if not noise:
        return math.inf
    return -math.inf if math.isinf(noise) else -10 * math.log10(noise)
