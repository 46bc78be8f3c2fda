"""An independent quantiser for block-scaled formats, slow and by the book; and blocks counted one by one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from ampwatch.numerics.blocks import (
    NUM_DISTANCES,
    NUM_LEVELS,
    NUM_MANTISSAS,
    BlockHistogram,
    BlockLevel,
)
from ampwatch.numerics.formats import FORMATS
from ampwatch.wire.records import Operand, OperandRecord
from tests.numerics.oracle import (
    NUMBERS,
    cast_by_table,
    cast_by_torch,
    exponent_of,
    histogram_of,
)


def quantised(values: Tensor, name: str) -> Tensor:
    """Return values after a cast to a block-scaled format and back, in blocks along the memory.

    Args:
        values: float64, a whole number of blocks.
        name: Of the format.
    """
    fmt = FORMATS[name]
    assert fmt.block is not None
    blocks = values.reshape(-1, fmt.block.elements)
    scales = _nvfp4_scales(blocks) if name == "nvfp4" else _mx_scales(blocks, fmt.max)
    largest = torch.tensor(fmt.max, dtype=torch.float64)
    scaled = (blocks / scales).clamp(-largest, largest)
    table = NUMBERS.get(name)
    elements = cast_by_torch(scaled, name) if table is None else cast_by_table(scaled, table)
    return (elements * scales).reshape(values.shape)


def _mx_scales(blocks: Tensor, largest: float) -> Tensor:
    """OCP MX 1.0, 6.3: the power of two below the largest magnitude, over that below the format's."""
    exponents = torch.floor(torch.log2(blocks.abs().amax(1, keepdim=True)))
    return torch.exp2(exponents.nan_to_num(neginf=0.0) - math.floor(math.log2(largest)))


def _nvfp4_scales(blocks: Tensor) -> Tensor:
    """arXiv:2509.25149, appendix B: in E4M3, times that of the tensor in float32."""
    whole = (blocks.abs().amax() / (6 * 448)).float().double()
    scales = (blocks.abs().amax(1, keepdim=True) / 6 / whole).clamp(max=448.0)
    return scales.float().to(torch.float8_e4m3fn).double().clamp(min=2.0**-9) * whole


def rounded(values: Tensor, name: str) -> Tensor:
    """Return values after a cast to any format and back: FP8 with a scale of the whole tensor."""
    fmt = FORMATS[name]
    if fmt.block:
        return quantised(values, name)
    scale = 1.0
    if fmt.bits == 8:
        scale = 2.0 ** math.floor(math.log2(fmt.max / float(values.abs().amax())))
    return (values.float() * scale).to(getattr(torch, name)).double() / scale


def operand_of(
    operand: Operand, values: Tensor, step: int = 3, scale: float = 1.0
) -> OperandRecord:
    """Return the record of an operand, measured element by element, its gradients times a loss scale."""
    flat = (values * scale).float().double().reshape(-1)
    largest = float(flat.abs().amax())
    blocks = tuple(counted(flat.view(-1, n).tolist(), n, largest) for n in (16, 32))
    return OperandRecord(step, operand, scale, blocks, histogram_of(flat.tolist()))


def sqnr_db(values: Tensor, rounded: Tensor) -> float:
    """Return the signal-to-quantisation-noise ratio; inf without noise. Unit: dB."""
    noise = float(((values - rounded) ** 2).sum())
    return 10 * math.log10(float((values**2).sum()) / noise) if noise else math.inf


def counted(blocks: Sequence[Sequence[float]], size: int, largest: float) -> BlockHistogram:
    """Count blocks, element by element.

    Args:
        blocks: The blocks that are measured.
        size: Elements of a block.
        largest: Largest finite magnitude of the whole tensor; 0 if there is none.
    """
    top = math.frexp(largest)[1] - 1 if largest else 0
    distances = [Counter[int]() for _ in range(NUM_LEVELS)]
    maxima = [Counter[int]() for _ in range(NUM_LEVELS)]
    zero_blocks = 0
    for block in blocks:
        if not all(map(math.isfinite, block)):
            continue
        loudest = max(map(abs, block))
        if not loudest:
            zero_blocks += 1
            continue
        fraction, exponent = math.frexp(loudest)
        level = min(top - (exponent - 1), NUM_LEVELS - 1)
        maxima[level][int((2 * fraction - 1) * NUM_MANTISSAS)] += 1
        far = (exponent - exponent_of(x) for x in block if x)
        distances[level].update(min(d, NUM_DISTANCES - 1) for d in far)
    levels = tuple(
        BlockLevel(
            tuple(d[i] for i in range(NUM_DISTANCES)), tuple(m[i] for i in range(NUM_MANTISSAS))
        )
        for d, m in zip(distances, maxima, strict=True)
    )
    return BlockHistogram(size, top, levels, zero_blocks)
