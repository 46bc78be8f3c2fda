"""The program for the GPU: the exponents of a stretch of memory, in Triton.

Every element becomes a *mark*, a word with one bit set: number ``position % 32``, where the
position is the exponent (``fused_keys.py``). Marks are counted with logic alone
(``bitsliced.py`` says how, and why). The counts of marks are those of bins where the elements
of a section lie within 32 binades, which the exact extremes tell; these are wanted anyway.
Each lower window of 32 binades, and a section with NaN, infinities or subnormal numbers,
takes another pass, over what is then in the cache.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202, FBT003, N803, N806, PLR0913, PLR0917, PLR1714
# The language of Triton has no types, no short circuit and no structs; constants are in capitals.

import triton
import triton.language as tl

from ampwatch.training.kernels import rows as layout
from ampwatch.training.kernels.bitsliced import add3, add8, carry_over, count
from ampwatch.training.kernels.fused_keys import LOWEST, key_of, native, position_of

LANES = tl.constexpr(128)
"""Marks that are counted side by side, one for each thread. Four elements that a thread reads
next to one another go into one lane: with a lane for each of them, the digits alone took 32
registers and not 10, and 168 registers became 255 with another version of Triton."""
READ = tl.constexpr(4 * 128)
"""Elements that are read side by side: 16 bytes a thread in float32."""
STEP = tl.constexpr(8 * 4 * 128)
SECTION = tl.constexpr(31 * 8 * 4 * 128)
"""Elements between two visits to the row: 992 for each lane, which 10 binary digits hold."""

ANYWHERE = tl.constexpr(1 << 20)
"""The window of the first pass, in which every position is."""
ANY_DISTANCE = tl.constexpr(1 << 21)
"""A length that reaches from ``ANYWHERE`` down to the lowest position."""

ROW_WORDS = tl.constexpr(layout.ROW_WORDS)
ZEROS = tl.constexpr(layout.ZEROS)
NANS = tl.constexpr(layout.NANS)
POSITIVE_INFS = tl.constexpr(layout.POSITIVE_INFS)
NEGATIVE_INFS = tl.constexpr(layout.NEGATIVE_INFS)
AMAX_KEY = tl.constexpr(layout.AMAX_KEY)
AMIN_KEY = tl.constexpr(layout.AMIN_KEY)


# Left to itself, Triton compiles a variant for pointers that are multiples of 16 and another for
# those that are not: in the middle of a step, when a gate comes that is a scalar among others. It
# would gain nothing, for elements are read through the addresses in the table of units.
@triton.jit(do_not_specialize=("rows", "gate"))
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


@triton.jit(do_not_specialize=("units", "rows"))
def measure(
    units,
    rows,
    KIND: tl.constexpr,
    MANTISSA: tl.constexpr,
    OFFSET: tl.constexpr,
    MAX_KEY: tl.constexpr,
    INF_KEY: tl.constexpr,
    WARPS: tl.constexpr,
):
    """Add one unit, a stretch of a piece, to the row of the piece."""
    unit = units + tl.program_id(0).to(tl.int64) * 4
    row = rows + tl.load(unit + 3) * ROW_WORDS
    # Behind a closed gate ``prepare`` has left zero words. In an open row this one is never 0, whatever
    # other units have written by now: it is NO_AMIN, or a key of a magnitude above 0. Asking the row and
    # not the gate leaves one variant for both.
    if tl.load(row.to(tl.pointer_type(tl.int64)) + AMIN_KEY // 2) == 0:
        return
    address = tl.load(unit)
    if KIND == "float64":
        start = address.to(tl.pointer_type(tl.uint64))
    elif KIND == "float32":
        start = address.to(tl.pointer_type(tl.uint32))
    elif KIND == "float16" or KIND == "bfloat16":
        start = address.to(tl.pointer_type(tl.uint16))
    else:
        start = address.to(tl.pointer_type(tl.uint8))
    start = tl.multiple_of(start, 16)
    begin = tl.load(unit + 1).to(tl.int32)
    end = tl.load(unit + 2).to(tl.int32)
    for first in range(0, end, SECTION):
        length = tl.minimum(end - first, SECTION)
        _section(
            start + first, begin - first, length, row,
            KIND, MANTISSA, OFFSET, MAX_KEY, INF_KEY, WARPS,
        )  # fmt: skip


@triton.jit
def _section(
    start,
    begin,
    end,
    row,
    KIND: tl.constexpr,
    MANTISSA: tl.constexpr,
    OFFSET: tl.constexpr,
    MAX_KEY: tl.constexpr,
    INF_KEY: tl.constexpr,
    WARPS: tl.constexpr,
):
    """Add what is counted without a visit to the row in between."""
    WORD: tl.constexpr = tl.uint64 if KIND == "float64" else tl.uint32
    BIAS: tl.constexpr = 1022 if KIND == "float64" else 126
    begin = tl.maximum(begin, 0)
    # Only the first unit of a piece off the beat begins in the middle: that is one masked step.
    whole = tl.where(begin == 0, end // STEP * STEP, 0)
    counts = tl.zeros([32], tl.int32)
    top = tl.zeros([], WORD)
    bottom = top
    irregular = False
    window = tl.full([], ANYWHERE, tl.int32)
    distance = tl.full([], ANY_DISTANCE, tl.uint32)
    limit = top - 1
    lowest = window
    # One loop for the first pass and the others: the code of a pass is long, and stands here once.
    while window >= lowest:
        marks, high, low = _pass(
            start, begin, whole, end, window, distance, limit, KIND, MANTISSA, OFFSET, WARPS
        )
        if window == ANYWHERE:
            top = high
            bottom = low
            irregular = top > MAX_KEY
            if KIND == "float32" or KIND == "bfloat16":
                irregular = irregular | (bottom < 0x7FFFFF)  # subnormal numbers share a position
            if irregular:
                top, bottom = _census(
                    start, begin, end, row, KIND, MANTISSA, OFFSET, MAX_KEY, INF_KEY
                )
                window = position_of(top, KIND, True) + 32
            else:
                counts = marks
                tl.atomic_add(row + ZEROS, end - begin - tl.sum(counts, 0), sem="relaxed")
                window = position_of(top, KIND, True)
            lowest = position_of(bottom + 1, KIND, True)
            whole = 0
            distance = tl.full([], 32, tl.uint32)
            limit = tl.full([], MAX_KEY, WORD)
        else:
            _add_to_bins(row, marks, window, BIAS)
            counts -= tl.where(irregular, 0, marks)  # the first pass had them under the same marks
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
    start, begin, whole, end, window, distance, limit,
    KIND: tl.constexpr, MANTISSA: tl.constexpr, OFFSET: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """Return counts of the 32 marks, the largest key, and the smallest above 0, less 1.

    The elements before ``whole`` all count, without a question. From there on those count that
    are of the piece, and only keys up to ``limit`` have marks, whose positions are less than
    ``distance`` below ``window``.
    """
    WORD: tl.constexpr = tl.uint64 if KIND == "float64" else tl.uint32
    none = tl.zeros([LANES], tl.uint32)
    d0, d1, d2, d3, d4, d5, d6, d7, d8, d9 = (
        none,
        none,
        none,
        none,
        none,
        none,
        none,
        none,
        none,
        none,
    )
    top = tl.zeros([LANES], WORD)
    # Unsigned, so 0 - 1 is the largest number: the neutral element of the minimum, and what the key
    # of a zero comes out as, which is how zeros drop out.
    bottom = top - 1
    for first in range(0, whole, STEP):
        here = start + first
        # fmt: off
        d0, d1, d2, a, top, bottom = _eight(here, 0, 0, 0, 0, 0, 0, d0, d1, d2, top, bottom, True, KIND, MANTISSA, OFFSET)
        d0, d1, d2, b, top, bottom = _eight(here, 2, 0, 0, 0, 0, 0, d0, d1, d2, top, bottom, True, KIND, MANTISSA, OFFSET)
        d0, d1, d2, c, top, bottom = _eight(here, 4, 0, 0, 0, 0, 0, d0, d1, d2, top, bottom, True, KIND, MANTISSA, OFFSET)
        d0, d1, d2, d, top, bottom = _eight(here, 6, 0, 0, 0, 0, 0, d0, d1, d2, top, bottom, True, KIND, MANTISSA, OFFSET)
        # fmt: on
        d3, a = add3(d3, a, b)
        d3, c = add3(d3, c, d)
        d4, carry = add3(d4, a, c)
        d5, d6, d7, d8, d9 = carry_over(carry, d5, d6, d7, d8, d9)
    # A quarter of a step: what is asked of an element takes registers, too.
    for first in range(whole, end, STEP // 4):
        d0, d1, d2, carry, top, bottom = _eight(
            start + first, 0, begin - first, end - first, window, distance, limit,
            d0, d1, d2, top, bottom, False, KIND, MANTISSA, OFFSET,
        )  # fmt: skip
        d3, carry = d3 ^ carry, d3 & carry
        d4, carry = d4 ^ carry, d4 & carry
        d5, d6, d7, d8, d9 = carry_over(carry, d5, d6, d7, d8, d9)
    counts = count(d0, d1, d2, d3, d4, d5, d6, d7, d8, d9, WARPS)
    return counts, tl.max(top, 0), tl.min(bottom, 0)


@triton.jit
def _eight(
    start, NUMBER: tl.constexpr, begin, end, window, distance, limit, d0, d1, d2, top, bottom,
    WHOLE: tl.constexpr, KIND: tl.constexpr, MANTISSA: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """Count 8 elements in each lane, in the reads ``NUMBER`` and the next; return a carry."""
    # fmt: off
    a, b, c, d, top, bottom = _four(start, NUMBER, begin, end, window, distance, limit, top, bottom, WHOLE, KIND, MANTISSA, OFFSET)
    e, f, g, h, top, bottom = _four(start, NUMBER + 1, begin, end, window, distance, limit, top, bottom, WHOLE, KIND, MANTISSA, OFFSET)
    # fmt: on
    d0, d1, d2, carry = add8(d0, d1, d2, a, b, c, d, e, f, g, h)
    return d0, d1, d2, carry, top, bottom


@triton.jit
def _four(
    start, NUMBER: tl.constexpr, begin, end, window, distance, limit, top, bottom,
    WHOLE: tl.constexpr, KIND: tl.constexpr, MANTISSA: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """Mark four elements in each lane; what is not of the piece reads as 0, which has no mark."""
    # The constant is added last, to become part of an instruction. Added to the places it gives an
    # address of 64 bits for each of them, and takes twice their registers.
    places = tl.arange(0, READ)
    pointers = start + places + NUMBER * READ
    if WHOLE:
        pattern = tl.load(pointers)
    else:
        inside = (places >= begin - NUMBER * READ) & (places < end - NUMBER * READ)
        pattern = tl.load(pointers, mask=inside, other=0)
    key = key_of(pattern, KIND, MANTISSA, OFFSET)
    position = position_of(key, KIND, not WHOLE)
    # 1 as well, but the compiler does not know: of a minimum with 1 it makes two instructions.
    one = tl.minimum(key, tl.num_programs(1)).to(tl.uint32)
    if not WHOLE:
        below = (window - position).to(tl.uint32)  # a negative one is a large number
        one = tl.where((below < distance) & (key <= limit), one, 0)
    # A rotation in two shifts. Shifts by 32 and more are undefined in LLVM, hence `& 31`, and `0 - shift`
    # for 32 - shift, which would be 32 where shift is 0.
    shift = position.to(tl.uint32)
    mark = (one << (shift & 31)) | (one >> ((0 - shift) & 31))
    k0, k1, k2, k3 = _by_lane(key, KIND)
    top = tl.maximum(tl.maximum(tl.maximum(tl.maximum(top, k0), k1), k2), k3)
    bottom = tl.minimum(tl.minimum(bottom, k0 - 1), k1 - 1)
    bottom = tl.minimum(tl.minimum(bottom, k2 - 1), k3 - 1)
    a, b, c, d = _by_lane(mark, KIND)
    return a, b, c, d, top, bottom


@triton.jit
def _by_lane(values, KIND: tl.constexpr):
    """Part what was read into the four that each lane has; in a thread, so nothing is moved."""
    if KIND == "float64":  # 16 bytes are two of them, and the other two are half a read away
        values = tl.permute(tl.reshape(values, [2, LANES, 2]), (1, 2, 0))
    else:
        values = tl.reshape(values, [LANES, 2, 2])
    even, odd = tl.split(values)
    a, b = tl.split(even)
    c, d = tl.split(odd)
    return a, b, c, d


@triton.jit
def _census(
    start, begin, end, row, KIND: tl.constexpr, MANTISSA: tl.constexpr, OFFSET: tl.constexpr,
    MAX_KEY: tl.constexpr, INF_KEY: tl.constexpr,
):  # fmt: skip
    """Count zeros, NaN and infinities; return the extremes of what is finite, as ``_pass``."""
    WORD: tl.constexpr = tl.uint64 if KIND == "float64" else tl.uint32
    zeros = tl.zeros([READ], tl.int32)
    nans = zeros
    positive = zeros
    negative = zeros
    top = tl.zeros([READ], WORD)
    bottom = top - 1
    for first in range(0, end, READ):
        offsets = first + tl.arange(0, READ)
        inside = (offsets >= begin) & (offsets < end)
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
