"""Casts to block-scaled formats, foretold, against an independent quantiser."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ampwatch.numerics.block_casts import (
    MIN_BLOCKS,
    SQNR_ERROR_DB,
    cast_blocks,
    nearest,
)
from ampwatch.numerics.blocks import BLOCK_SIZES, PART, BlockHistogram, stretch_of
from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.numerics.formats import FORMATS
from ampwatch.training.kernels.eager import EagerKernel
from ampwatch.training.kernels.rows import BLOCK_ROW_WORDS, ROW_WORDS, decode, decode_blocks
from tests.numerics import trainings
from tests.numerics.block_oracle import counted, quantised, sqnr_db
from tests.numerics.oracle import NUMBERS, cast_by_table, cast_by_torch, histogram_of

NAMES = [name for name, fmt in FORMATS.items() if fmt.block]
OF_MX = [name for name in NAMES if name != "nvfp4"]
SHIFTS = (-60, 0, 33)


def _measured(values: Tensor, name: str) -> tuple[BlockHistogram, ExponentHistogram]:
    block = FORMATS[name].block
    assert block is not None
    flat = values.double().reshape(-1)
    blocks = flat.view(-1, block.elements).tolist()
    return counted(blocks, block.elements, float(flat.abs().amax())), histogram_of(flat.tolist())


def _spread(blocks: int = 40) -> Tensor:
    """Magnitudes over thirty exponents, zeros, powers of two, and blocks of nothing."""
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(blocks * 32, generator=generator).double()
    values *= torch.exp2(4 * torch.randn(blocks * 32, generator=generator).double())
    values[::7] = 0
    values[5::11] = torch.exp2(torch.floor(values[5::11].abs().clamp(min=1e-9).log2()))
    values[64:128] = 0
    return values.float().double()


def _flushed(values: Tensor, name: str) -> int:
    return int(((quantised(values, name) == 0) & (values != 0)).sum())


@pytest.mark.parametrize("name", OF_MX)
def test_what_a_cast_to_a_format_of_mx_flushes_is_known_exactly(name: str) -> None:
    """At every loss scale; of E5M2 between two bounds, for it reaches beyond the last distance."""
    values = _spread()
    for shift in SHIFTS:
        blocks, histogram = _measured(values * 2.0**shift, name)
        outcome = cast_blocks(blocks, FORMATS[name], histogram)
        flushed = _flushed(values * 2.0**shift, name)
        assert outcome.flushed_low <= flushed <= outcome.flushed_high
        if name != "mxfp8_e5m2":
            assert outcome.flushed == flushed
        assert outcome.nonzero == int((values != 0).sum())


def test_what_a_cast_to_nvfp4_flushes_lies_between_two_bounds_and_near_the_estimate() -> None:
    """Its scales are no powers of two, so that the limit lies inside a distance."""
    values = torch.randn(64 * 512, generator=torch.Generator().manual_seed(0)).double()
    blocks, histogram = _measured(values, "nvfp4")
    outcome = cast_blocks(blocks, FORMATS["nvfp4"], histogram)
    flushed = _flushed(values, "nvfp4")

    assert outcome.flushed_low < flushed < outcome.flushed_high
    assert outcome.flushed == pytest.approx(flushed, rel=0.05)


@pytest.mark.parametrize("name", OF_MX)
def test_what_lands_on_subnormal_numbers_is_known_exactly(name: str) -> None:
    """Or on the smallest normal number; counted here by the real scale of each block."""
    values = _spread()
    fmt = FORMATS[name]
    blocks, histogram = _measured(values, name)
    by_block = values.view(-1, 32)
    largest = by_block.abs().amax(1, keepdim=True)
    top = math.floor(math.log2(fmt.max))
    scaled = by_block.abs() / torch.exp2(torch.floor(largest.log2()) - top)
    subnormal = (scaled > fmt.flush_at) & (scaled <= fmt.min_normal) & (by_block != 0)
    outcome = cast_blocks(blocks, fmt, histogram)

    # Of E5M2, and of what is beyond the last distance, shares are estimates.
    expected = pytest.approx(int(subnormal.sum()), abs=1e-6 if name != "mxfp8_e5m2" else 20)
    assert outcome.subnormal == expected


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(trainings.gpt, marks=pytest.mark.nightly),
        pytest.param(trainings.cnn, marks=pytest.mark.nightly),
        trainings.mlp,
    ],
)
def tensors(request: pytest.FixtureRequest) -> dict[str, Tensor]:
    """Return the tensors of a training that have enough blocks."""
    train: Callable[[], dict[str, Tensor]] = request.param
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = train()
    return {name: t for name, t in found.items() if t.numel() >= MIN_BLOCKS * max(BLOCK_SIZES)}


def _by_kernel(
    tensor: Tensor, *, whole: bool = True
) -> tuple[tuple[BlockHistogram, ...], ExponentHistogram]:
    """Measure with PyTorch: counting hundreds of thousands of elements one by one is slow."""
    kernel = EagerKernel()
    rows = torch.empty((1, ROW_WORDS), dtype=torch.int32)
    out = torch.empty((1, BLOCK_ROW_WORDS), dtype=torch.int32)
    kernel.measure([tensor], rows)
    kernel.measure_blocks([tensor], rows, out, whole=whole)
    histogram = decode(rows.numpy().tobytes(), "float32", tensor.numel())
    return decode_blocks(out.numpy().tobytes(), histogram), histogram


@pytest.mark.rotating
def test_the_noise_of_a_cast_of_real_tensors_is_known_to_within_its_stated_error(
    tensors: dict[str, Tensor],
) -> None:
    """Gradients, activations and weights; to formats of MX within 1 dB."""
    off: dict[tuple[str, str], float] = {}
    shares: dict[tuple[str, str], float] = {}
    for title, tensor in tensors.items():
        flat = tensor.reshape(-1)[: tensor.numel() // 32 * 32].contiguous()
        (of_16, of_32), histogram = _by_kernel(flat)
        values = flat.double()
        for name in NAMES:
            blocks = of_16 if name == "nvfp4" else of_32
            outcome = cast_blocks(blocks, FORMATS[name], histogram)
            assert outcome.is_certain
            off[title, name] = outcome.sqnr_db - sqnr_db(values, quantised(values, name))
            flushed = _flushed(values, name) / max(outcome.nonzero, 1)
            shares[title, name] = abs(outcome.flushed_share - flushed)

    assert len(off) >= 7 * 8
    limits = {name: SQNR_ERROR_DB if name == "nvfp4" else 1.0 for name in NAMES}
    assert {key: by for key, by in off.items() if abs(by) > limits[key[1]]} == {}
    assert max(by for (_, name), by in shares.items() if name != "nvfp4") < 1e-9
    assert max(shares.values()) < 0.02


def test_a_sample_of_the_blocks_says_what_all_of_them_say(tensors: dict[str, Tensor]) -> None:
    """Of tensors that are not measured whole: to within 1 dB and 2 points but for one cast in 50.

    Gradients of a convolution are the hard ones, with a few loud samples: one in 10 of that training.
    """
    off: list[float] = []
    shares: list[float] = []
    for tensor in tensors.values():
        if stretch_of(tensor.numel()) == PART:
            continue
        every, histogram = _by_kernel(tensor.contiguous())
        sample, _ = _by_kernel(tensor.contiguous(), whole=False)
        assert all(h.blocks >= MIN_BLOCKS for h in sample)
        for name in ("mxfp4", "nvfp4", "mxfp8_e4m3"):
            place = BLOCK_SIZES.index(16 if name == "nvfp4" else 32)
            of_all, of_some = (
                cast_blocks(measured[place], FORMATS[name], histogram)
                for measured in (every, sample)
            )
            off.append(abs(of_some.sqnr_db - of_all.sqnr_db))
            shares.append(abs(of_some.flushed_share - of_all.flushed_share))

    assert len(off) >= 20
    few = len(off) // (10 if any(tensor.dim() == 4 for tensor in tensors.values()) else 50)
    assert sum(by > 1.0 for by in off) <= few
    assert sum(by > 0.02 for by in shares) <= len(shares) // 50


@pytest.mark.parametrize("name", NAMES)
def test_rounding_is_that_of_a_cast(name: str) -> None:
    """Ties included, for all magnitudes up to the largest number, and saturating beyond."""
    fmt = FORMATS[name]
    values = torch.linspace(0, 1, 4001).double() ** 4 * fmt.max
    halves = torch.arange(0, 65).double() * fmt.min_subnormal / 2
    values = torch.cat([values, halves.clamp(max=fmt.max)])
    table = NUMBERS.get(name)
    expected = cast_by_torch(values, name) if table is None else cast_by_table(values, table)

    assert [nearest(v, fmt) for v in values.tolist()] == expected.tolist()
    assert nearest(2 * fmt.max, fmt) == fmt.max


def test_nothing_and_zeros_lose_nothing() -> None:
    """There is no ratio without a signal, and no noise where all values are numbers of the format."""
    empty = cast_blocks(BlockHistogram(32), FORMATS["mxfp4"])
    assert (empty.flushed, empty.nonzero, empty.is_certain) == (0, 0, False)
    assert math.isnan(empty.sqnr_db)


@pytest.mark.parametrize(("name", "size"), [("mxfp4", 16), ("nvfp4", 32), ("float16", 32)])
def test_blocks_of_another_size_are_refused(name: str, size: int) -> None:
    """Sizes are no detail: with blocks of 16 fewer elements are lost."""
    with pytest.raises(ValueError, match="expected blocks as"):
        cast_blocks(BlockHistogram(size), FORMATS[name])
