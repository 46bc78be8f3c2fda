"""Blocks as kernels count them, against blocks counted one by one in plain Python."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from ampwatch.numerics.blocks import (
    BLOCK_SIZES,
    MANY_MEASURED,
    MAX_STRETCH,
    MIN_MEASURED,
    PART,
    BlockHistogram,
    part_of,
    stretch_of,
)
from ampwatch.training.kernels.base import Kernel
from ampwatch.training.kernels.rows import (
    BLOCK_DTYPES,
    BLOCK_ROW_BYTES,
    BLOCK_ROW_WORDS,
    ROW_WORDS,
    decode_blocks,
)
from tests.numerics.block_oracle import counted
from tests.training.kernels.reference import histogram

LENGTHS = (1, 31, 32, 63, PART, 1000, 4095, 4096, 9000, 33_333, 70_001, 150_001)
dtypes = pytest.mark.parametrize("dtype", BLOCK_DTYPES)


def _spread(numel: int, dtype: str, scale: float = 1.0) -> Tensor:
    """Magnitudes over thirty exponents, with zeros, powers of two and blocks of zeros."""
    random = torch.Generator().manual_seed(numel)
    values = torch.randn(numel, generator=random)
    values *= torch.exp2(3 * torch.randn(numel, generator=random))
    values[::17] = 0
    values[3::19] = 0.25
    values[64:96] = 0
    return (values * scale).to(getattr(torch, dtype))


def _expected(tensor: Tensor) -> tuple[BlockHistogram, ...]:
    flat = tensor.double().reshape(-1).tolist()
    stretch = stretch_of(len(flat))
    parts: list[list[float]] = []
    for number, begin in enumerate(range(0, len(flat), stretch)):
        first = begin + PART * part_of(number, stretch // PART)
        first = first if first + PART <= len(flat) else begin
        parts.append(flat[first : first + PART])
    largest = max((abs(x) for x in flat if math.isfinite(x)), default=0.0)
    found = []
    for size in BLOCK_SIZES:
        # Whole blocks of 32 only, also where blocks of 16 are counted.
        ends = [(part, len(part) // 32 * 32) for part in parts]
        blocks = [part[i : i + size] for part, end in ends for i in range(0, end, size)]
        found.append(counted(blocks, size, largest))
    return tuple(found) if any(h.blocks for h in found) else ()


def _measured(kernel: Kernel, pieces: Sequence[Tensor]) -> list[tuple[BlockHistogram, ...]]:
    """Measure into rows full of garbage; the row beyond is left alone."""
    rows = torch.full((len(pieces) + 1, ROW_WORDS), 77, dtype=torch.int32)
    out = torch.full((len(pieces) + 1, BLOCK_ROW_WORDS), 77, dtype=torch.int32)
    kernel.measure(pieces, rows)
    kernel.measure_blocks(pieces, rows, out)
    assert out[-1].eq(77).all()
    held = [out[i].numpy().tobytes()[:BLOCK_ROW_BYTES] for i in range(len(pieces))]
    return [decode_blocks(row, histogram(p)) for row, p in zip(held, pieces, strict=True)]


@pytest.mark.rotating
@dtypes
def test_blocks_of_every_length_are_counted_as_in_plain_python(kernel: Kernel, dtype: str) -> None:
    """All of a small tensor, and the part of each stretch of a large one."""
    pieces = [_spread(n, dtype) for n in LENGTHS]

    assert _measured(kernel, pieces) == [_expected(p) for p in pieces]


@dtypes
def test_what_is_tiny_or_not_finite_is_counted_as_in_plain_python(
    kernel: Kernel, dtype: str
) -> None:
    """Subnormal numbers have distances of their own; a block with NaN or infinity has none."""
    tiny = _spread(4000, dtype, 2.0**-130)
    odd = _spread(4000, dtype)
    odd[33], odd[700], odd[1000], odd[1400] = math.nan, math.inf, -math.inf, 2.0**-140
    alone = torch.full((64,), math.nan).to(odd.dtype)
    pieces = [tiny, odd, alone, torch.zeros(200).to(odd.dtype)]

    assert _measured(kernel, pieces) == [_expected(p) for p in pieces]


def test_what_is_no_format_of_training_and_what_was_not_measured_has_no_blocks(
    kernel: Kernel,
) -> None:
    """float64 and float8; a closed gate."""
    x = torch.randn(500)
    assert _measured(kernel, [x.double(), x.to(torch.float8_e4m3fn)]) == [(), ()]
    rows = torch.zeros((1, ROW_WORDS), dtype=torch.int32)
    out = torch.full((1, BLOCK_ROW_WORDS), 77, dtype=torch.int32)
    kernel.measure([x], rows, gate=torch.zeros(1))
    kernel.measure_blocks([x], rows, out)
    assert out.eq(0).all()


def test_a_transposed_piece_is_measured_along_its_memory(kernel: Kernel) -> None:
    """Blocks are of what lies next to one another, whatever the shape says."""
    x = _spread(64 * 96, "float32").view(64, 96)
    assert _measured(kernel, [x.t()]) == [_expected(x)]


def test_parts_reach_every_column_of_a_matrix() -> None:
    """Also where a row is a whole number of stretches; always the first part would reach few."""
    parts = MAX_STRETCH // PART
    for width in (1, 2, 8, 64):
        reached = {
            (number % width, part_of(number, parts)) for number in range(200 * width * parts)
        }
        assert len(reached) == width * parts


def test_small_tensors_are_measured_whole_and_of_large_ones_one_element_in_32() -> None:
    """In between no fewer than of small ones, and no fewer than one in 8 until there are many."""
    assert {stretch_of(n) for n in (0, 1, 100, MIN_MEASURED)} == {PART}
    for numel in (MIN_MEASURED + 1, 4096, 20_000, 65_535, 65_536, 100_000, 262_144, 10**9):
        measured = numel * PART // stretch_of(numel)
        assert measured >= MIN_MEASURED
        assert measured >= min(MANY_MEASURED, numel // 8)
        assert measured >= numel // 32
    assert stretch_of(262_144) == stretch_of(2**30) == MAX_STRETCH


@dtypes
def test_one_call_that_measures_both_does_what_two_do(kernel: Kernel, dtype: str) -> None:
    """Rows and blocks, of a subsample as well; behind a closed gate words of zero."""
    pieces = [_spread(n, dtype) for n in LENGTHS]
    shapes = [(len(pieces) + 1, words) for words in (ROW_WORDS, BLOCK_ROW_WORDS)]
    rows, out, both_rows, both = (
        torch.full(shape, 77, dtype=torch.int32) for shape in (*shapes, *shapes)
    )
    stride = [1 + n // 4096 for n in LENGTHS]
    kernel.measure(pieces, rows, stride=stride)
    kernel.measure_blocks(pieces, rows, out)
    kernel.measure(pieces, both_rows, stride=stride, blocks=both)

    assert both_rows.equal(rows)
    assert both.equal(out)
    kernel.measure(pieces, both_rows, gate=torch.zeros(1), blocks=both)
    assert both[:-1].eq(0).all()
    assert both[-1].eq(77).all()


interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="runs inside test_fused.py"
)


def _for_gpus() -> Kernel:
    from ampwatch.training.kernels.eager import EagerKernel  # noqa: PLC0415
    from ampwatch.training.kernels.fused import TritonKernel  # noqa: PLC0415 - needs Triton

    class FirstInPlainTorch(TritonKernel):
        """What is under test is the second program."""

        def measure(self, *args: object, **more: object) -> None:
            EagerKernel().measure(*args, **more)  # type: ignore[arg-type]

    return FirstInPlainTorch()


@interpreted
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_the_kernel_for_gpus_counts_some_blocks_as_in_plain_python() -> None:
    """Powers of two, zeros, NaN and an infinity, off the beat; and no whole block."""
    x = _spread(99, "bfloat16")
    x[40], x[80] = math.nan, math.inf
    pieces = [x[1:], x[:5]]
    assert _measured(_for_gpus(), pieces) == [_expected(p) for p in pieces]


@interpreted
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@dtypes
def test_the_kernel_for_gpus_counts_as_in_plain_python(dtype: str) -> None:
    """Lengths, views off the beat, subnormal numbers, NaN; a closed gate."""
    x = _spread(700, dtype)
    odd = _spread(300, dtype, 2.0**-130)
    odd[40], odd[100] = math.nan, math.inf
    pieces = [x, x[3:], odd, x[:33], x[:5]]
    assert _measured(_for_gpus(), pieces) == [_expected(p) for p in pieces]
    large = _spread(MIN_MEASURED * 2 + 40, dtype)
    assert _measured(_for_gpus(), [large]) == [_expected(large)]
