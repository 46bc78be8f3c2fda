"""Blocks of tensors by PyTorch's own operations, where nothing is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ampwatch.numerics.blocks import (
    BLOCK_SIZES,
    NUM_DISTANCES,
    NUM_LEVELS,
    NUM_MANTISSAS,
    PART,
    stretch_of,
)
from ampwatch.training.kernels.block_rows import (
    BLOCK_DTYPES,
    BLOCK_ROW_WORDS,
    LEVEL_WORDS,
    SIZE_WORDS,
    ZERO_BLOCKS,
)
from ampwatch.training.kernels.rows import AMIN_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
def fill_block_rows(
    pieces: Sequence[Tensor], rows: Tensor, out: Tensor, *, whole: bool = False
) -> None:
    """Fill ``out[i]`` with the blocks of ``pieces[i]`` (``base.Kernel.measure_blocks``)."""
    out[: len(pieces)].zero_()
    # A closed gate has left words of zero: the smallest magnitude is nowhere else 0.
    is_measured = rows[: len(pieces), AMIN_KEY : AMIN_KEY + 2].any(1).tolist()
    for piece, row, has_row in zip(pieces, out, is_measured, strict=False):
        if not has_row or piece.dtype not in _DTYPES:
            continue
        flat = piece.as_strided((piece.numel(),), (1,))
        top = _top(flat)
        for part in _parts(flat, PART if whole else stretch_of(piece.numel())):
            keys = part.float().view(torch.int32) & _KEY_MASK
            for begin, size in zip(range(0, BLOCK_ROW_WORDS, SIZE_WORDS), BLOCK_SIZES, strict=True):
                row[begin : begin + SIZE_WORDS] += _counts(keys.view(-1, size), top)


def _top(flat: Tensor) -> int:
    """Return the exponent of the largest finite magnitude."""
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
    """Return the words of a size.

    Args:
        keys: Of float32, a block in each row.
        top: Exponent of the largest magnitude of the tensor.
    """
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
