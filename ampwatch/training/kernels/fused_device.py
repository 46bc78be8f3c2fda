"""The program for the GPU: the exponents of a stretch of memory, in Triton.

Every element becomes a *mark*, a word with one bit set: number ``position % 32``, where the
position is the exponent (``fused_keys.py``). Marks are counted with logic alone
(``bitsliced.py`` says how, and why). The counts of marks are those of bins where the elements
of a section lie within 32 binades, which the exact extremes tell; these are wanted anyway.
Each lower window of 32 binades, and a section with NaN, infinities or subnormal numbers,
takes another pass, over what is then in the cache.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202, FBT003, N803, N806, PLR0913, PLR0917, PLR1714, SIM102
# The language of Triton has no types, no short circuit and no structs; constants are in capitals.

import triton
import triton.language as tl

from ampwatch.training.kernels import rows as layout
from ampwatch.training.kernels.bitsliced import add3, add8, carry_over, count
from ampwatch.training.kernels.fused_keys import LOWEST, key_of, native, position_of

LANES = tl.constexpr(512)
"""Marks that are counted side by side: 4 for each of 128 threads, read 16 bytes at a time."""
STEP = tl.constexpr(16 * 512)
SECTION = tl.constexpr(15 * 16 * 512)
"""Elements between two visits to the row: 240 for each lane, which 8 binary digits hold."""

ROW_WORDS = tl.constexpr(layout.ROW_WORDS)
ZEROS = tl.constexpr(layout.ZEROS)
NANS = tl.constexpr(layout.NANS)
POSITIVE_INFS = tl.constexpr(layout.POSITIVE_INFS)
NEGATIVE_INFS = tl.constexpr(layout.NEGATIVE_INFS)
AMAX_KEY = tl.constexpr(layout.AMAX_KEY)
AMIN_KEY = tl.constexpr(layout.AMIN_KEY)


@triton.jit
def prepare(rows, gate, GATED: tl.constexpr):
    """Write an empty row; one of zero words if the gate is 0."""
    words = tl.arange(0, 512)
    # The words of NO_AMIN, the lower one first: every GPU is little-endian.
    empty = tl.where(words == AMIN_KEY, -1, tl.where(words == AMIN_KEY + 1, 0x7FFFFFFF, 0))
    if GATED:
        empty = tl.where(tl.load(gate) == 0, 0, empty)
    # In 64 bits: the product would wrap in int32 beyond 5 million rows.
    row = rows + tl.program_id(0).to(tl.int64) * ROW_WORDS
    tl.store(row + words, empty, mask=words < ROW_WORDS)


@triton.jit
def measure(
    units,
    rows,
    gate,
    GATED: tl.constexpr,
    ALIGNED: tl.constexpr,
    KIND: tl.constexpr,
    MANTISSA: tl.constexpr,
    OFFSET: tl.constexpr,
    MAX_KEY: tl.constexpr,
    INF_KEY: tl.constexpr,
):
    """Add one unit, a stretch of a piece, to the row of the piece."""
    if GATED:
        if tl.load(gate) == 0:
            return
    unit = units + tl.program_id(0) * 3
    address = tl.load(unit)
    if KIND == "float64":
        start = address.to(tl.pointer_type(tl.uint64))
    elif KIND == "float32":
        start = address.to(tl.pointer_type(tl.uint32))
    elif KIND == "float16" or KIND == "bfloat16":
        start = address.to(tl.pointer_type(tl.uint16))
    else:
        start = address.to(tl.pointer_type(tl.uint8))
    if ALIGNED:
        start = tl.multiple_of(start, 16)
    numel = tl.load(unit + 1).to(tl.int32)
    row = rows + tl.load(unit + 2) * ROW_WORDS
    for first in range(0, numel, SECTION):
        length = tl.minimum(numel - first, SECTION)
        _section(start + first, length, row, KIND, MANTISSA, OFFSET, MAX_KEY, INF_KEY)


@triton.jit
def _section(
    start,
    numel,
    row,
    KIND: tl.constexpr,
    MANTISSA: tl.constexpr,
    OFFSET: tl.constexpr,
    MAX_KEY: tl.constexpr,
    INF_KEY: tl.constexpr,
):
    """Add what is counted without a visit to the row in between."""
    BIAS: tl.constexpr = 1022 if KIND == "float64" else 126
    counts, top, bottom = _pass(start, numel, 0, False, KIND, MANTISSA, OFFSET, MAX_KEY)
    irregular = top > MAX_KEY
    if KIND == "float32" or KIND == "bfloat16":
        irregular = irregular | (bottom < 0x7FFFFF)  # subnormal numbers share a position
    if irregular:
        top, bottom = _census(start, numel, row, KIND, MANTISSA, OFFSET, MAX_KEY, INF_KEY)
        counts = counts * 0
        window = position_of(top, KIND, True)
    else:
        tl.atomic_add(row + ZEROS, numel - tl.sum(counts, 0), sem="relaxed")
        window = position_of(top, KIND, True) - 32
    lowest = position_of(bottom + 1, KIND, True)
    while window >= lowest:
        lower, _, _ = _pass(start, numel, window, True, KIND, MANTISSA, OFFSET, MAX_KEY)
        _add_to_bins(row, lower, window, BIAS)
        counts -= tl.where(irregular, 0, lower)  # the first pass had them under the same marks
        window -= 32
    _add_to_bins(row, counts, position_of(top, KIND, True), BIAS)
    keys = row.to(tl.pointer_type(tl.int64))
    amax = native(top, KIND, MANTISSA, OFFSET).to(tl.int64)
    amin = native(bottom + 1, KIND, MANTISSA, OFFSET).to(tl.int64)
    # Relaxed is enough: rows are read after the kernel, and its end orders all that it has written.
    # Maximum and minimum of integers do not depend on the order, so results are the same each time.
    tl.atomic_max(keys + AMAX_KEY // 2, amax, sem="relaxed")
    tl.atomic_min(keys + AMIN_KEY // 2, amin, mask=top != 0, sem="relaxed")


@triton.jit
def _add_to_bins(row, counts, window, BIAS: tl.constexpr):
    """Add the counts of the marks of the 32 positions up to ``window``."""
    positions = window - ((window - tl.arange(0, 32)) & 31)
    bins = row + (positions - BIAS - LOWEST)
    tl.atomic_add(bins, counts, mask=counts != 0, sem="relaxed")


@triton.jit
def _pass(
    start,
    numel,
    window,
    EXACT: tl.constexpr,
    KIND: tl.constexpr,
    MANTISSA: tl.constexpr,
    OFFSET: tl.constexpr,
    MAX_KEY: tl.constexpr,
):
    """Return counts of the 32 marks, the largest key, and the smallest above 0, less 1.

    ``EXACT`` marks only what is finite and among the 32 positions up to ``window``, and knows
    subnormal numbers.
    """
    WORD: tl.constexpr = tl.uint64 if KIND == "float64" else tl.uint32
    none = tl.zeros([LANES], tl.uint32)
    d0, d1, d2, d3, d4, d5, d6, d7 = none, none, none, none, none, none, none, none
    top = tl.zeros([LANES], WORD)
    # Unsigned, so 0 - 1 is the largest number: the neutral element of the minimum, and what the key
    # of a zero comes out as, which is how zeros drop out.
    bottom = top - 1
    whole = 0
    if not EXACT:
        whole = numel // STEP * STEP
        for first in range(0, whole, STEP):
            d0, d1, d2, d3, d4, d5, d6, d7, top, bottom = _step(
                start, first, numel, window, d0, d1, d2, d3, d4, d5, d6, d7, top, bottom,
                True, EXACT, KIND, MANTISSA, OFFSET, MAX_KEY,
            )  # fmt: skip
    for first in range(whole, numel, STEP):
        d0, d1, d2, d3, d4, d5, d6, d7, top, bottom = _step(
            start, first, numel, window, d0, d1, d2, d3, d4, d5, d6, d7, top, bottom,
            False, EXACT, KIND, MANTISSA, OFFSET, MAX_KEY,
        )  # fmt: skip
    return count(d0, d1, d2, d3, d4, d5, d6, d7), tl.max(top, 0), tl.min(bottom, 0)


@triton.jit
def _step(
    start, first, numel, window, d0, d1, d2, d3, d4, d5, d6, d7, top, bottom,
    WHOLE: tl.constexpr, EXACT: tl.constexpr, KIND: tl.constexpr, MANTISSA: tl.constexpr,
    OFFSET: tl.constexpr, MAX_KEY: tl.constexpr,
):  # fmt: skip
    """Count 16 elements in each lane."""
    eights = d3
    for half in tl.static_range(2):
        offset = first + half * (8 * LANES)
        # fmt: off
        a, top, bottom = _row(start, offset, numel, window, top, bottom, WHOLE, EXACT, KIND, MANTISSA, OFFSET, MAX_KEY)
        b, top, bottom = _row(start, offset + LANES, numel, window, top, bottom, WHOLE, EXACT, KIND, MANTISSA, OFFSET, MAX_KEY)
        c, top, bottom = _row(start, offset + 2 * LANES, numel, window, top, bottom, WHOLE, EXACT, KIND, MANTISSA, OFFSET, MAX_KEY)
        d, top, bottom = _row(start, offset + 3 * LANES, numel, window, top, bottom, WHOLE, EXACT, KIND, MANTISSA, OFFSET, MAX_KEY)
        e, top, bottom = _row(start, offset + 4 * LANES, numel, window, top, bottom, WHOLE, EXACT, KIND, MANTISSA, OFFSET, MAX_KEY)
        f, top, bottom = _row(start, offset + 5 * LANES, numel, window, top, bottom, WHOLE, EXACT, KIND, MANTISSA, OFFSET, MAX_KEY)
        g, top, bottom = _row(start, offset + 6 * LANES, numel, window, top, bottom, WHOLE, EXACT, KIND, MANTISSA, OFFSET, MAX_KEY)
        h, top, bottom = _row(start, offset + 7 * LANES, numel, window, top, bottom, WHOLE, EXACT, KIND, MANTISSA, OFFSET, MAX_KEY)
        # fmt: on
        d0, d1, d2, carry = add8(d0, d1, d2, a, b, c, d, e, f, g, h)
        if half == 0:
            eights = carry
        else:
            d3, carry = add3(d3, eights, carry)
            d4, d5, d6, d7 = carry_over(carry, d4, d5, d6, d7)
    return d0, d1, d2, d3, d4, d5, d6, d7, top, bottom


@triton.jit
def _row(
    start, offset, numel, window, top, bottom, WHOLE: tl.constexpr, EXACT: tl.constexpr,
    KIND: tl.constexpr, MANTISSA: tl.constexpr, OFFSET: tl.constexpr, MAX_KEY: tl.constexpr,
):  # fmt: skip
    """Mark an element in each lane; what is beyond the end reads as 0, which has no mark."""
    offsets = offset + tl.arange(0, LANES)
    if WHOLE:
        pattern = tl.load(start + offsets)
    else:
        pattern = tl.load(start + offsets, mask=offsets < numel, other=0)
    key = key_of(pattern, KIND, MANTISSA, OFFSET)
    position = position_of(key, KIND, EXACT)
    # 1 as well, but the compiler does not know: of a minimum with 1 it makes two instructions.
    one = tl.minimum(key, tl.num_programs(1)).to(tl.uint32)
    if EXACT:
        below = window - position
        one = tl.where((below >= 0) & (below < 32) & (key <= MAX_KEY), one, 0)
    # A rotation in two shifts. Shifts by 32 and more are undefined in LLVM, hence `& 31`, and `0 - shift`
    # for 32 - shift, which would be 32 where shift is 0.
    shift = position.to(tl.uint32)
    mark = (one << (shift & 31)) | (one >> ((0 - shift) & 31))
    return mark, tl.maximum(top, key), tl.minimum(bottom, key - 1)


@triton.jit
def _census(
    start, numel, row, KIND: tl.constexpr, MANTISSA: tl.constexpr, OFFSET: tl.constexpr,
    MAX_KEY: tl.constexpr, INF_KEY: tl.constexpr,
):  # fmt: skip
    """Count zeros, NaN and infinities; return the extremes of what is finite, as ``_pass``."""
    WORD: tl.constexpr = tl.uint64 if KIND == "float64" else tl.uint32
    zeros = tl.zeros([LANES], tl.int32)
    nans = zeros
    positive = zeros
    negative = zeros
    top = tl.zeros([LANES], WORD)
    bottom = top - 1
    for first in range(0, numel, LANES):
        offsets = first + tl.arange(0, LANES)
        inside = offsets < numel
        pattern = tl.load(start + offsets, mask=inside, other=0)
        key = key_of(pattern, KIND, MANTISSA, OFFSET)
        BITS: tl.constexpr = pattern.dtype.primitive_bitwidth
        minus = (pattern >> (BITS - 1)) != 0
        infinite = (key == INF_KEY) & (key > MAX_KEY)
        zeros += (inside & (key == 0)).to(tl.int32)
        nans += ((key > MAX_KEY) & (key != INF_KEY)).to(tl.int32)
        positive += (infinite & (minus == 0)).to(tl.int32)
        negative += (infinite & minus).to(tl.int32)
        finite = tl.where(key > MAX_KEY, 0, key).to(WORD)
        top = tl.maximum(top, finite)
        bottom = tl.minimum(bottom, finite - 1)
    tl.atomic_add(row + ZEROS, tl.sum(zeros, 0), sem="relaxed")
    tl.atomic_add(row + NANS, tl.sum(nans, 0), sem="relaxed")
    tl.atomic_add(row + POSITIVE_INFS, tl.sum(positive, 0), sem="relaxed")
    tl.atomic_add(row + NEGATIVE_INFS, tl.sum(negative, 0), sem="relaxed")
    return tl.max(top, 0), tl.min(bottom, 0)
