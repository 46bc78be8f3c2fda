"""The kernel made of PyTorch's own operations, for machines without a compiler.

A tensor is taken chunk by chunk, float16 and bfloat16 widened to float32. The keys of a chunk
(``encodings.py``), less 1, have the number of their bin above the mantissa; 0 comes out as the
largest of all. ``bincount`` does the rest, and takes most of the time: the other operations
work in place, in the processor's cache. A chunk with inf, NaN or subnormal numbers, whose
exponent would not tell, is done again at leisure.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from msgspec import Struct

from ampwatch.numerics.blocks import (
    BLOCK_SIZES,
    NUM_DISTANCES,
    NUM_LEVELS,
    NUM_MANTISSAS,
    PART,
    stretch_of,
)
from ampwatch.numerics.encodings import ENCODINGS
from ampwatch.numerics.exponents import MAX_EXPONENT, MIN_EXPONENT
from ampwatch.training.kernels.base import BLOCK
from ampwatch.training.kernels.dtypes import name_of
from ampwatch.training.kernels.norms import fill_norms
from ampwatch.training.kernels.rows import (
    AMAX_KEY,
    AMIN_KEY,
    BLOCK_DTYPES,
    BLOCK_ROW_WORDS,
    LEVEL_WORDS,
    NANS,
    NEGATIVE_INFS,
    NO_AMIN,
    POSITIVE_INFS,
    ROW_WORDS,
    SIZE_WORDS,
    ZERO_BLOCKS,
    ZEROS,
    word,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor


_DTYPES = frozenset(getattr(torch, name) for name in BLOCK_DTYPES)

_TOGETHER = 256
"""Parts that are worked on at a time: few enough for a processor's cache."""

_KEY_MASK = 0x7FFFFFFF
_INF = 0x7F800000
_MANTISSA = 23
_MIN_NORMAL = 1 << _MANTISSA
_BIAS = 127
_UNIT = -149
"""Of float32, which all that is measured is widened to."""

_LARGEST_BLOCK = max(BLOCK_SIZES)


@torch.no_grad()
def fill_block_rows(pieces: Sequence[Tensor], rows: Tensor, out: Tensor) -> None:
    """Fill ``out[i]`` with the blocks of ``pieces[i]`` (``base.Kernel.measure_blocks``)."""
    out[: len(pieces)].zero_()
    # A closed gate has left words of zero: the smallest magnitude is nowhere else 0.
    is_measured = rows[: len(pieces), AMIN_KEY : AMIN_KEY + 2].any(1).tolist()
    for piece, row, has_row in zip(pieces, out, is_measured, strict=False):
        if not has_row or piece.dtype not in _DTYPES:
            continue
        flat = piece.as_strided((piece.numel(),), (1,))
        top = _top(flat)
        for part in _parts(flat, stretch_of(piece.numel())):
            keys = part.float().view(torch.int32) & _KEY_MASK
            for begin, size in zip(range(0, BLOCK_ROW_WORDS, SIZE_WORDS), BLOCK_SIZES, strict=True):
                row[begin : begin + SIZE_WORDS] += _counts(keys.view(-1, size), top)


def _top(flat: Tensor) -> int:
    keys = flat.float().view(torch.int32) & _KEY_MASK
    largest = keys.where(keys < _INF, 0).amax(0, keepdim=True)
    # As a list: reading a scalar is an op that dispatch modes of the user see.
    return _first(_floor(largest.clamp(min=1)))


def _first(values: Tensor) -> int:
    return int(values.tolist()[0])


def _parts(flat: Tensor, stretch: int) -> Iterator[Tensor]:
    """Yield the parts that are measured, as rows of whole blocks."""
    numel = flat.numel()
    device = flat.device
    numbers = torch.arange(-(-numel // stretch), device=device)
    part = (numbers * 0x9E3779B1 & 0xFFFFFFFF) >> 16 & stretch // PART - 1
    first = numbers * stretch + part * PART
    first = torch.where(first + PART <= numel, first, numbers * stretch)
    whole = first[first + PART <= numel]
    within = torch.arange(PART, device=device)
    for begin in range(0, len(whole), _TOGETHER):
        yield flat[whole[begin : begin + _TOGETHER, None] + within]
    if len(whole) < len(first):
        begin = _first(first[-1:])
        end = begin + (numel - begin) // _LARGEST_BLOCK * _LARGEST_BLOCK
        if end > begin:
            yield flat[begin:end]


def _counts(keys: Tensor, top: int) -> Tensor:
    """Return the words of a size."""
    largest = keys.amax(1)
    is_finite = largest < _INF
    held = is_finite & (largest > 0)
    floor = _floor(largest)
    base = (top - floor).clamp_(0, NUM_LEVELS - 1) * LEVEL_WORDS
    distance = ((floor + 1)[:, None] - _ceil(keys)).clamp_(0, NUM_DISTANCES - 1)
    elements = torch.where(held[:, None] & (keys > 0), base[:, None] + distance, SIZE_WORDS)
    part = _normalised(largest) >> (_MANTISSA - 4) & (NUM_MANTISSAS - 1)
    blocks = torch.where(held, base + NUM_DISTANCES + part, SIZE_WORDS)
    blocks.masked_fill_(is_finite & (largest == 0), ZERO_BLOCKS)
    words = torch.cat([elements.flatten(), blocks])
    return torch.bincount(words, minlength=SIZE_WORDS + 1)[:SIZE_WORDS]


def _normalised(keys: Tensor) -> Tensor:
    """Return keys with an exponent field also for subnormal numbers, which then count from 2**-149."""
    # Up to 2**23 a key is exact as a float32, and normal.
    return torch.where(keys < _MIN_NORMAL, keys.float().view(torch.int32), keys)


def _floor(keys: Tensor) -> Tensor:
    """Return the exponents of the powers of two at or below keys above 0."""
    missing = torch.where(keys < _MIN_NORMAL, _UNIT, 0)
    return (_normalised(keys) >> _MANTISSA) - _BIAS + missing


def _ceil(keys: Tensor) -> Tensor:
    """Return the exponents of the bins of keys above 0."""
    missing = torch.where(keys < _MIN_NORMAL, _UNIT, 0)
    return (_normalised(keys) + _MIN_NORMAL - 1 >> _MANTISSA) - _BIAS + missing


CHUNK = 32 * BLOCK
"""Elements that are worked on at a time: few enough for a processor's cache."""

_EVERYTHING = slice(0, AMAX_KEY)
_BINS = slice(0, NANS)
_NONFINITE = slice(NANS, AMAX_KEY)
"""Words that count something, all of them and two parts."""


_C_TYPES: dict[torch.dtype, Any] = {
    torch.int32: ctypes.c_int32,
    torch.int64: ctypes.c_int64,
    torch.bool: ctypes.c_bool,
}


class _Layout(NamedTuple):
    """Bits of a dtype, as integers of its size."""

    mantissa_bits: int  # stored bits of the mantissa
    unit: int  # exponent of the smallest subnormal number
    inf: int  # key of inf
    mask: int  # all bits but the sign


def _layout(name: str) -> _Layout:
    encoding = ENCODINGS[name]
    mask = (1 << encoding.bits - 1) - 1
    return _Layout(encoding.mantissa_bits, encoding.unit, encoding.max_key + 1, mask)


_FLOAT32 = _layout("float32")
_FLOAT64 = _layout("float64")
_FIRST_WORD = _FLOAT32.unit + _FLOAT32.mantissa_bits - MIN_EXPONENT
"""Word of the bin of float32 keys from 1 to ``_MIN_NORMAL``."""

_ZERO = _FLOAT32.mask >> _FLOAT32.mantissa_bits
"""Bin in which ``bincount`` counts zeros, relative to ``_FIRST_WORD``."""


class _Row(Struct):
    """A row while it is filled; the extremes are keys of the dtype that is measured."""

    words: Tensor
    zeros: int = 0
    amax: int = 0
    amin: int = NO_AMIN

    def widen(self, amax: int, amin: int = NO_AMIN) -> None:
        self.amax = max(self.amax, amax)
        self.amin = min(self.amin, amin)

    def narrow(self, convert: Callable[[int], int]) -> None:
        """Convert the extremes to keys of the tensor's own dtype."""
        self.amax = convert(self.amax)
        if self.amin != NO_AMIN:
            self.amin = convert(self.amin)


class _Scratch:
    """Memory that a chunk is worked on in, allocated once per device.

    Constants are tensors: PyTorch takes three times as long for a number, which is most of
    the time for a small tensor.
    """

    def __init__(self, device: torch.device) -> None:
        self.keys = torch.empty(CHUNK, dtype=torch.int32, device=device)
        self.wide = torch.empty(CHUNK, dtype=torch.float32, device=device)
        self.mask = torch.tensor(_FLOAT32.mask, dtype=torch.int32, device=device)
        self.one = torch.tensor(1, dtype=torch.int32, device=device)
        self.shift = torch.tensor(_FLOAT32.mantissa_bits, dtype=torch.int32, device=device)


class EagerKernel:
    """Measures tensors with PyTorch.

    Works on any device, but waits for it there. Scratch memory is allocated once per device.
    """

    name = "eager"
    max_binned = 16384

    def __init__(self) -> None:
        self._scratch: dict[torch.device, _Scratch] = {}
        self._words: dict[torch.dtype, Tensor] = {}

    norms = staticmethod(fill_norms)
    measure_blocks = staticmethod(fill_block_rows)

    @torch.no_grad()
    def measure(
        self,
        pieces: Sequence[Tensor],
        rows: Tensor,
        *,
        stride: Sequence[int] | None = None,
        gate: Tensor | None = None,
        blocks: Tensor | None = None,
    ) -> None:
        """Fill ``rows[i]`` with the exponents of ``pieces[i]`` (``base.Kernel.measure``)."""
        rows = rows[: len(pieces)].zero_()
        if pieces and (gate is None or _read(gate.bool())):
            self._fill(pieces, rows, stride)
        if blocks is not None:
            self.measure_blocks(pieces, rows, blocks)

    def _fill(self, pieces: Sequence[Tensor], rows: Tensor, stride: Sequence[int] | None) -> None:
        filled = []
        for i, piece in enumerate(pieces):
            row = _Row(rows[i])
            every = stride[i] if stride else 1
            # No view(-1): a transposed piece is dense too, and the order is of no account.
            flat = piece.as_strided((piece.numel(),), (1,))
            if flat.element_size() == 1:
                self._measure_8(flat, every, row)
            elif flat.dtype is torch.float64:
                _measure_64(flat, every, row)
            else:
                self._measure_32(flat, every, row)
            filled.append((row.zeros, row.amax, row.amin))
        # One copy for all rows: on a small tensor every operation costs as much as the counting.
        tail = torch.tensor(filled, device=rows.device)
        rows[:, ZEROS].add_(tail[:, 0])
        rows.view(torch.int64)[:, AMAX_KEY // 2 :].copy_(tail[:, 1:])

    def _measure_32(self, flat: Tensor, every: int, row: _Row) -> None:
        if flat.device not in self._scratch:
            self._scratch[flat.device] = _Scratch(flat.device)
        scratch = self._scratch[flat.device]
        total: Tensor | None = None
        for chunk, wanted in _chunks(flat, every):
            keys = scratch.keys[: chunk.numel()].view_as(chunk)
            bits = chunk
            if chunk.dtype is not torch.float32:
                bits = scratch.wide[: chunk.numel()].view_as(chunk).copy_(chunk)
            bits = bits.view(torch.int32)
            torch.bitwise_and(bits, scratch.mask, out=keys)
            high = _read(keys.amax())
            low = NO_AMIN
            if wanted is not _NONFINITE:
                # Less 1, a power of two falls into the bin of which it is the upper end, and 0 turns
                # into the largest key of all.
                low = _read(keys.sub_(scratch.one).bitwise_and_(scratch.mask).amin())
            # The exponent field is no bin for inf and NaN, and one bin for all subnormal numbers.
            if high >= _FLOAT32.inf or low < _MIN_NORMAL - 1:
                _count_exactly(bits, _FLOAT32, wanted, row)
                continue
            row.widen(high, low + 1 if low < high else NO_AMIN)
            if wanted is not _NONFINITE:
                bins = keys.bitwise_right_shift_(scratch.shift).view(-1)
                counts = torch.bincount(bins, minlength=_ZERO + 1)
                total = counts if total is None else total.add_(counts)
        if total is not None:
            row.words[_FIRST_WORD : _FIRST_WORD + _ZERO].add_(total[:_ZERO])
            row.zeros = _read(total, _ZERO)
        if flat.dtype is not torch.float32:
            row.narrow(_to_float16 if flat.dtype is torch.float16 else _to_bfloat16)

    def _measure_8(self, flat: Tensor, every: int, row: _Row) -> None:
        if flat.dtype not in self._words:
            name = name_of(flat.dtype)
            numbers = [word(name, p) for p in range(256)]
            self._words[flat.dtype] = torch.tensor(numbers, device="cpu")
        words = self._words[flat.dtype].to(flat.device)
        # What there is to know of elements of 8 bits is how often each pattern occurs.
        keys = torch.arange(256, device=flat.device) & 0x7F
        for chunk, wanted in _chunks(flat, every):
            counts = torch.bincount(chunk.view(torch.uint8).flatten(), minlength=256)
            total = counts.new_zeros(ROW_WORDS).index_add_(0, words, counts)
            row.words[wanted] += total[wanted]
            _widen(row, keys, (counts > 0) & (words < ZEROS), wanted)


def _chunks(flat: Tensor, every: int) -> Iterator[tuple[Tensor, slice]]:
    """Yield the parts of a tensor, with the words that are wanted of each."""
    if every <= 1:
        for begin in range(0, flat.numel(), CHUNK):
            yield flat[begin : begin + CHUNK], _EVERYTHING
        return
    periods, rest = divmod(flat.numel(), every * BLOCK)
    regular = flat[: flat.numel() - rest].view(periods, every * BLOCK)[:, :BLOCK]
    for begin in range(0, periods, CHUNK // BLOCK):
        yield regular[begin : begin + CHUNK // BLOCK], _BINS
    if rest:
        yield flat[flat.numel() - rest :][:BLOCK], _BINS
    for begin in range(0, flat.numel(), CHUNK):
        yield flat[begin : begin + CHUNK], _NONFINITE


def _measure_64(flat: Tensor, every: int, row: _Row) -> None:
    for chunk, wanted in _chunks(flat, every):
        _count_exactly(chunk.view(torch.int64), _FLOAT64, wanted, row)


def _count_exactly(bits: Tensor, layout: _Layout, wanted: slice, row: _Row) -> None:
    """Count a chunk, whatever is in it."""
    keys = bits & layout.mask
    # Of keys beyond finite ones this is nonsense, and overwritten below.
    rounded_up = keys + (1 << layout.mantissa_bits) - 1 >> layout.mantissa_bits
    exponents = rounded_up + (layout.unit + layout.mantissa_bits - 1)
    if layout is _FLOAT32:  # the subnormal numbers of float64 are beyond the bins
        # The bits of an integer, exact and normal in float32 up to 24 bits.
        log2 = torch.frexp((keys - 1).clamp_(0, _MIN_NORMAL).to(torch.float32)).exponent
        exponents = torch.where(keys < _MIN_NORMAL, log2 + layout.unit, exponents)
    words = exponents.clamp_(MIN_EXPONENT, MAX_EXPONENT).sub_(MIN_EXPONENT)
    words.masked_fill_(keys == 0, ZEROS)
    words.masked_fill_(keys > layout.inf, NANS)
    words.masked_fill_(bits == layout.inf, POSITIVE_INFS)
    words.masked_fill_(bits == layout.inf - layout.mask - 1, NEGATIVE_INFS)
    row.words[wanted] += torch.bincount(words.view(-1), minlength=ROW_WORDS)[wanted]
    _widen(row, keys, words < ZEROS, wanted)


def _widen(row: _Row, keys: Tensor, is_finite: Tensor, wanted: slice) -> None:
    """Widen the extremes of a row by those of the keys that are finite and above 0."""
    high = _read(keys.where(is_finite, 0).amax())
    if not high or wanted is _NONFINITE:
        row.widen(high)
    else:
        row.widen(high, _read(keys.where(is_finite, high).amin()))


def _read(values: Tensor, index: int = 0) -> int:
    """Return one of some numbers as an integer; from host memory without an ATen op."""
    if values.is_cpu:
        address = values.data_ptr() + index * values.element_size()
        return int(_C_TYPES[values.dtype].from_address(address).value)
    return int(values.view(-1)[index])


def _to_float16(key: int) -> int:
    return int.from_bytes(struct.pack("<e", ENCODINGS["float32"].value(key)), "little")


def _to_bfloat16(key: int) -> int:
    return key >> 16
