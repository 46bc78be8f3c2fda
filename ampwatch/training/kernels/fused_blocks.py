"""The program for the GPU that measures blocks, in Triton.

It is a program of its own, and not part of the first one: that has no register to spare, and levels
count from the largest magnitude of the whole tensor, which is known when the first one is done. It
reads one part of 128 elements of each stretch, an element in each thread.

``tl.histogram`` counts, at 37 instructions an element in the oldest version of Triton
(``bitsliced.py``): twice of one element in 32 that is 2.3 for each element of the tensor, beside the
9 to 11 of the first program.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202, FBT003, N803, PLR1714
# The language of Triton has no types, no short circuit and no structs; constants are in capitals.

import triton
import triton.language as tl

from ampwatch.numerics import blocks as facts
from ampwatch.training.kernels import rows as first_layout
from ampwatch.training.kernels import rows as layout
from ampwatch.training.kernels.fused_keys import key_of, position_of

PART = tl.constexpr(facts.PART)
NUM_LEVELS = tl.constexpr(facts.NUM_LEVELS)
NUM_DISTANCES = tl.constexpr(facts.NUM_DISTANCES)
NUM_MANTISSAS = tl.constexpr(facts.NUM_MANTISSAS)
LEVEL_WORDS = tl.constexpr(layout.LEVEL_WORDS)
ZERO_BLOCKS = tl.constexpr(layout.ZERO_BLOCKS)
SIZE_WORDS = tl.constexpr(layout.SIZE_WORDS)
BLOCK_ROW_WORDS = tl.constexpr(layout.BLOCK_ROW_WORDS)
ROW_WORDS = tl.constexpr(first_layout.ROW_WORDS)
AMAX_KEY = tl.constexpr(first_layout.AMAX_KEY)
AMIN_KEY = tl.constexpr(first_layout.AMIN_KEY)

INF_KEY = tl.constexpr(0x7F800000)
BINS = tl.constexpr(256)
"""Of a histogram: words of a size, and one of what is not counted."""
UNIT_WORDS = tl.constexpr(6)


@triton.jit(do_not_specialize=("units", "rows", "out"))
def measure_blocks(
    units, rows, out, KIND: tl.constexpr, MANTISSA: tl.constexpr, OFFSET: tl.constexpr
):  # fmt: skip
    """Add the parts of some stretches of a piece to the row of its blocks.

    ``units`` has an address, the first stretch, the one after the last, the number of the piece, its
    elements, and those of a stretch.
    """
    unit = units + tl.program_id(0).to(tl.int64) * UNIT_WORDS
    number = tl.load(unit + 3)
    keys = (rows + number * ROW_WORDS).to(tl.pointer_type(tl.int64))
    # Behind a closed gate the row has words of zero.
    if tl.load(keys + AMIN_KEY // 2) == 0:
        return
    address = tl.load(unit)
    amax = tl.load(keys + AMAX_KEY // 2)
    if KIND == "float32":
        start = address.to(tl.pointer_type(tl.uint32))
        largest = amax.to(tl.uint32)
    else:
        start = address.to(tl.pointer_type(tl.uint16))
        largest = amax.to(tl.uint16)
    top = _floor_of(key_of(largest, KIND, MANTISSA, OFFSET), KIND)
    numel = tl.load(unit + 4).to(tl.int32)
    stretch = tl.load(unit + 5).to(tl.int32)
    last = tl.load(unit + 2).to(tl.int32)
    wide = tl.zeros([], tl.int64)
    counts16 = tl.zeros([BINS], tl.int32)
    counts32 = counts16
    for stretch_number in range(tl.load(unit + 1).to(tl.int32), last):
        # In 64 bits, where the product of two numbers of 32 bits does not wrap.
        product = (wide + stretch_number) * 0x9E3779B1
        part = ((product >> 16) & 0xFFFF & (stretch // PART - 1)).to(tl.int32)
        whole = stretch_number * stretch
        begin = whole + part * PART
        begin = tl.where(begin + PART <= numel, begin, whole)
        elements = tl.minimum(numel - begin, PART) // 32 * 32
        places = tl.arange(0, PART)
        inside = places < elements
        pattern = tl.load(start + begin + places, mask=inside, other=0)
        key = key_of(pattern, KIND, MANTISSA, OFFSET)
        counts16 += _count(key, inside, top, 16, KIND)
        counts32 += _count(key, inside, top, 32, KIND)
    row = out + number * BLOCK_ROW_WORDS
    words = tl.arange(0, BINS)
    tl.atomic_add(row + words, counts16, mask=words < SIZE_WORDS, sem="relaxed")
    tl.atomic_add(row + SIZE_WORDS + words, counts32, mask=words < SIZE_WORDS, sem="relaxed")


@triton.jit
def _count(key, inside, top, SIZE: tl.constexpr, KIND: tl.constexpr):
    """Return the words of a size, of the blocks of a part."""
    of_block = tl.max(tl.reshape(key, [PART // SIZE, SIZE]), 1)
    largest = tl.reshape(tl.broadcast_to(tl.expand_dims(of_block, 1), [PART // SIZE, SIZE]), [PART])
    is_finite = inside & (largest < INF_KEY)
    held = is_finite & (largest > 0)
    floor = _floor_of(largest, KIND)
    base = tl.minimum(tl.maximum(top - floor, 0), NUM_LEVELS - 1) * LEVEL_WORDS
    # A position is the exponent of the bin, and 126.
    distance = floor + 1 + 126 - position_of(key, KIND, True)
    distance = tl.minimum(tl.maximum(distance, 0), NUM_DISTANCES - 1)
    words = tl.where(held & (key > 0), base + distance, BINS - 1)
    counts = tl.histogram(words, BINS)
    # One element stands for its block.
    is_first = tl.arange(0, PART) % SIZE == 0
    mantissa = ((_normalised(largest, KIND) >> 19) & (NUM_MANTISSAS - 1)).to(tl.int32)
    blocks = tl.where(held, base + NUM_DISTANCES + mantissa, ZERO_BLOCKS)
    blocks = tl.where(is_first & is_finite, blocks, BINS - 1)
    return counts + tl.histogram(blocks, BINS)


@triton.jit
def _normalised(key, KIND: tl.constexpr):
    """Return keys with an exponent field also for subnormal numbers, which count from 2**-149."""
    if KIND == "float32" or KIND == "bfloat16":
        units = key.to(tl.float32).to(tl.uint32, bitcast=True)
        key = tl.where(key < 0x800000, units, key)
    return key


@triton.jit
def _floor_of(key, KIND: tl.constexpr):
    """Return the exponents of the powers of two at or below keys."""
    exponent = (_normalised(key, KIND) >> 23).to(tl.int32) - 127
    if KIND == "float32" or KIND == "bfloat16":
        exponent = tl.where(key < 0x800000, exponent - 149, exponent)
    return exponent
