"""The contract of every kernel for host memory, its rows and norms, and what the one of PyTorch's own ops leaves alone."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from ampwatch.numerics.encodings import DTYPES
from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.training.kernels import eager, rows
from ampwatch.training.kernels.base import BLOCK, Kernel
from ampwatch.training.kernels.norms import norms_of
from ampwatch.training.kernels.rows import ROW_BYTES, ROW_WORDS
from tests.training.kernels import oracle, reference
from tests.training.kernels.oracle import FLOAT8, all_patterns, exponent, values

SMALL = ("float16", "bfloat16", *FLOAT8)
small_dtypes = pytest.mark.parametrize("dtype", SMALL)

_NUMBERS = (0.0, 1.0, 2.0**-25, 65504.0, 65519.99, 65520.0, 2.0**-126, 2.0**-149, float("inf"))
_BOUNDARIES_32 = [struct.unpack("I", struct.pack("f", x))[0] for x in _NUMBERS]
_BOUNDARIES_64 = [struct.unpack("Q", struct.pack("d", x))[0] for x in _NUMBERS]


def _around(boundaries: list[int], sign: int) -> st.SearchStrategy[int]:
    near = [b + d for b in boundaries for d in (-1, 0, 1) if b + d >= 0]
    return st.sampled_from([*near, *(b | sign for b in near)])


# Powers of two, exactly: the bins end there, the upper end included.
PATTERNS_32 = st.one_of(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**23),
    st.integers(0, 511).map(lambda n: n << 23),
    _around(_BOUNDARIES_32, 1 << 31),
)
PATTERNS_64 = st.one_of(
    st.integers(0, 2**64 - 1),
    st.integers(0, 4095).map(lambda n: n << 52),
    _around(_BOUNDARIES_64, 1 << 63),
)


# The kernel keeps nothing from one example to the next.
patterns = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
LENGTHS = (1, 15, 16, 33, 64, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7, 40 * BLOCK + 1)


def _spread(numel: int, dtype: str, seed: int = 0) -> torch.Tensor:
    """Magnitudes over some thirty exponents, with zeros."""
    random = torch.Generator().manual_seed(seed)
    exponents = 4 * torch.randn(numel, generator=random)
    spread = torch.randn(numel, generator=random) * torch.exp2(exponents)
    spread[::17] = 0
    return spread.to(oracle.TORCH_DTYPES[dtype])


@small_dtypes
def test_every_pattern_is_counted_as_by_the_reference(kernel: Kernel, dtype: str) -> None:
    """All 256 or 65536 of them, forwards, backwards, and each alone in a block."""
    tensor = oracle.all_patterns(dtype)
    backwards = tensor.view(_integer(dtype)).flip(0).view(tensor.dtype)
    expected = reference.histogram(tensor)

    assert oracle.measured(kernel, [tensor, backwards]) == [expected, expected]


def _integer(dtype: str) -> torch.dtype:
    return torch.uint8 if dtype in oracle.FLOAT8 else torch.int16


@patterns
@given(st.lists(PATTERNS_32, max_size=70))
def test_float32_is_counted_as_in_plain_python(kernel: Kernel, patterns: list[int]) -> None:
    """Any bits: subnormal numbers, boundaries, NaN, infinities."""
    tensor = oracle.bits(patterns, "float32")

    assert oracle.measured(kernel, [tensor]) == [oracle.histogram(oracle.values(tensor))]


@patterns
@given(st.lists(PATTERNS_64, max_size=40))
def test_float64_is_counted_as_in_plain_python(kernel: Kernel, patterns: list[int]) -> None:
    """Any bits; what is beyond the axis is counted at its ends."""
    tensor = oracle.bits(patterns, "float64")

    assert oracle.measured(kernel, [tensor]) == [oracle.histogram(oracle.values(tensor))]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_length_is_counted_as_by_the_reference(kernel: Kernel, dtype: str) -> None:
    """Around blocks and vectors, all lengths in one call."""
    pieces = [_spread(numel, dtype) for numel in LENGTHS]

    assert oracle.measured(kernel, pieces) == list(map(reference.histogram, pieces))


@pytest.mark.parametrize("fill", [0.0, 1.0, 3e38, 1e-45, float("inf"), float("-inf"), float("nan")])
def test_blocks_of_one_value_are_counted(kernel: Kernel, fill: float) -> None:
    """The extremes of a block are the same, and its counts as large as they get."""
    tensor = torch.full((2 * BLOCK + 5,), fill)

    assert oracle.measured(kernel, [tensor]) == [reference.histogram(tensor)]


def test_a_block_may_hold_all_exponents_at_once(kernel: Kernel) -> None:
    """From the largest to the smallest normal number, too many to look for one by one."""
    tensor = oracle.bits([n % 255 << 23 | n for n in range(255, 3 * BLOCK)], "float32")

    assert oracle.measured(kernel, [tensor]) == [reference.histogram(tensor)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_a_single_odd_element_changes_nothing_else(kernel: Kernel, dtype: str) -> None:
    """NaN, infinity and the smallest subnormal number, each alone somewhere in a block."""
    for odd in (float("nan"), float("inf"), float("-inf"), 5e-324, 1e-45, 2.0**-24, 1e-40):
        tensor = _spread(2 * BLOCK, dtype)
        tensor[BLOCK + 77] = odd

        assert oracle.measured(kernel, [tensor]) == [reference.histogram(tensor)]


def test_a_list_of_all_dtypes_is_measured_in_one_call(kernel: Kernel) -> None:
    """Empty tensors and scalars in between do not matter."""
    pieces = [_spread(100, dtype) for dtype in DTYPES]
    pieces[3:3] = [torch.tensor([]), torch.tensor(3.0), torch.zeros(7)]

    assert oracle.measured(kernel, pieces) == list(map(reference.histogram, pieces))


def test_an_empty_list_is_measured(kernel: Kernel) -> None:
    """There is nothing to do, and nothing happens."""
    assert oracle.measured(kernel, []) == []


def test_parameters_are_measured_and_stay_out_of_autograd(kernel: Kernel) -> None:
    """Nothing is recorded for backward, nothing is written to."""
    parameter = torch.nn.Parameter(_spread(100, "float32"))
    before = parameter.detach().clone()
    version = parameter._version

    (histogram,) = oracle.measured(kernel, [parameter])

    assert histogram == reference.histogram(before)
    assert torch.equal(parameter, before)
    assert parameter._version == version


def test_a_closed_gate_leaves_rows_of_zero_words(kernel: Kernel) -> None:
    """An open one changes nothing."""
    rows = torch.full((2, ROW_WORDS), oracle.GARBAGE, dtype=torch.int32)
    kernel.measure([torch.ones(9)], rows, gate=torch.tensor([0.0]))

    assert bytes(rows[0].view(torch.uint8).tolist()) == bytes(ROW_BYTES)
    assert rows[1].eq(oracle.GARBAGE).all()

    kernel.measure([torch.ones(9)], rows, gate=torch.tensor([1.0]))

    assert rows[0].sum() > 0


def _expected_subsample(tensor: torch.Tensor, every: int) -> ExponentHistogram:
    """Bins, zeros and the smallest magnitude of every k-th block, the rest of all."""
    whole = reference.histogram(tensor)
    some = reference.histogram(torch.cat(tensor.split(BLOCK)[::every]))
    return ExponentHistogram(
        some.first,
        some.counts,
        some.zeros,
        whole.nans,
        whole.positive_infs,
        whole.negative_infs,
        whole.amax,
        some.amin,
        whole.numel,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("every", [3, 50])
def test_with_a_stride_the_bins_are_of_every_kth_block(
    kernel: Kernel, dtype: str, every: int
) -> None:
    """The largest magnitude, NaN and infinities are still those of all elements."""
    pieces = [_spread(numel, dtype) for numel in LENGTHS]
    for piece in pieces:
        piece.view(-1)[-1] = float("nan")
        piece.view(-1)[piece.numel() // 2] = float("-inf")

    counted = oracle.measured(kernel, pieces, stride=[every] * len(pieces))

    assert counted == [_expected_subsample(piece, every) for piece in pieces]


def test_each_piece_has_its_own_stride(kernel: Kernel) -> None:
    """One is measured whole, the other in part."""
    tensor = _spread(4 * BLOCK, "float32")

    whole, part = oracle.measured(kernel, [tensor, tensor], stride=[1, 4])

    assert whole == reference.histogram(tensor)
    assert part == _expected_subsample(tensor, 4)
    assert part.is_subsample


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_processor_that_flushes_subnormal_numbers_changes_nothing(
    kernel: Kernel, dtype: str
) -> None:
    """Under ``torch.set_flush_denormal`` every word of the row is the same."""
    tensor = (
        oracle.bits([*range(1, 200), 1 << 22, 1 << 23], dtype)
        if dtype in {"float32", "float64"}
        else oracle.all_patterns(dtype)
    )
    expected = oracle.rows_of(kernel, [tensor])
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers to zero")
    try:
        flushing = oracle.rows_of(kernel, [tensor])
    finally:
        torch.set_flush_denormal(False)

    assert flushing == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_norms_are_those_of_float64(kernel: Kernel, dtype: torch.dtype) -> None:
    """Of lengths around what is added up side by side, and of squares that float16 cannot hold."""
    generator = torch.Generator().manual_seed(0)
    pieces = [(torch.randn(n, generator=generator) * 900).to(dtype) for n in (1, 15, 17, 4097)]
    norms = torch.full((5,), -1.0)

    kernel.norms(pieces, norms)

    expected = torch.stack([piece.double().norm() for piece in pieces]).float()
    torch.testing.assert_close(norms[:4], expected, rtol=1e-5, atol=0.0)
    assert norms[4] == -1.0


def test_norms_say_what_is_not_finite_and_nothing_of_codes(kernel: Kernel) -> None:
    """A code of float8 is to be multiplied by a scale that is elsewhere."""
    codes = torch.ones(4).to(torch.float8_e4m3fn)
    pieces = [torch.tensor([1.0, math.inf]), torch.tensor([math.nan, 1.0]), codes, torch.ones(4)]
    norms = torch.zeros(4)

    kernel.norms(pieces, norms)

    assert norms[0] == math.inf
    assert norms[1:3].isnan().all()
    assert norms[3] == 2.0


@pytest.mark.parametrize("order", [2.0, math.inf])
def test_norms_are_those_of_float64_whatever_the_dtype(order: float) -> None:
    """Also of float16, where neither the squares nor the norm itself fit into the dtype."""
    tensors = [
        torch.full((3, 5), 6e4, dtype=torch.float16),
        torch.randn(7).bfloat16(),
        torch.randn(2, 2, dtype=torch.float64),
        torch.randn(4, requires_grad=True),
    ]
    alone = [norms_of([tensor], order).item() for tensor in tensors]
    assert norms_of(tensors, order).tolist() == alone
    for some in (tensors, tensors[:1], tensors[2:3]):
        found = norms_of(some, order)

        assert found.dtype is torch.float32
        assert not found.requires_grad
        assert found.tolist() == pytest.approx(
            [torch.linalg.vector_norm(t.detach().double(), order).item() for t in some], rel=1e-6
        )


@small_dtypes
def test_every_pattern_is_counted_as_in_plain_python(dtype: str) -> None:
    """All 256 or 65536 of them."""
    tensor = oracle.all_patterns(dtype)

    assert dtype in SMALL
    assert reference.histogram(tensor) == oracle.histogram(oracle.values(tensor))


def test_any_shape_and_layout_will_do() -> None:
    """A transposed, a strided and an expanded view, a scalar and nothing."""
    matrix = torch.randn(6, 4)

    for view in (matrix.t(), matrix[:, ::2], matrix[:1].expand(5, 4), matrix[0, 0], matrix[:0]):
        assert reference.histogram(view) == oracle.histogram(oracle.values(view))


ONE, THREE = 0x3F800000, 0x40400000  # keys of float32


def _row(
    bins: dict[int, int], tail: tuple[int, int, int, int], amax_key: int, amin_key: int
) -> bytes:
    counts = [bins.get(e, 0) for e in range(-191, 193)]
    return struct.pack("=384I4Iqq", *counts, *tail, amax_key, amin_key)


def test_the_largest_magnitude_may_lie_above_the_bins() -> None:
    """In a row of a subsample the bins end where the counts end."""
    row = _row({0: 4}, (0, 0, 0, 0), THREE, ONE)

    histogram = rows.decode(row, "float32", 10)

    assert (histogram.first, histogram.counts, histogram.amax) == (0, (4,), 3.0)


def test_a_subsample_may_hold_zeros_only() -> None:
    """Then there are no bins, and no smallest magnitude."""
    row = _row({}, (9, 0, 0, 0), THREE, rows.NO_AMIN)

    assert rows.decode(row, "float32", 10) == ExponentHistogram(0, (), 9, amax=3.0, numel=10)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", *FLOAT8])
def test_every_pattern_is_counted_in_the_word_of_what_it_is(dtype: str) -> None:
    """Each pattern of 8 and 16 bits is counted as PyTorch reads it."""

    def word(value: float) -> int:
        if math.isnan(value):
            return rows.NANS
        if math.isinf(value):
            return rows.POSITIVE_INFS if value > 0 else rows.NEGATIVE_INFS
        return exponent(abs(value)) + 191 if value else rows.ZEROS

    expected = [word(value) for value in values(all_patterns(dtype))]

    assert [rows.word(dtype, pattern) for pattern in range(len(expected))] == expected


class Watcher(TorchDispatchMode):
    """Notes reads of the host, and the largest tensor that an op returns."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.reads += func.name() in {"aten::_local_scalar_dense", "aten::item", "aten::nonzero"}
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.largest = max(self.largest, result.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("odd", [0.0, float("inf")])
def test_nothing_is_read_by_an_op_that_would_wait_for_a_device(dtype: str, odd: float) -> None:
    """Host memory is read where it lies, also when a chunk is done again."""
    tensor = torch.full((1000,), odd).to(oracle.TORCH_DTYPES[dtype])
    rows = torch.empty((1, ROW_WORDS), dtype=torch.int32)
    kernel = eager.EagerKernel()

    with Watcher() as watcher:
        kernel.measure([tensor], rows)

    assert watcher.reads == 0
    assert watcher.largest > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory_does_not_grow_with_the_tensor(dtype: str) -> None:
    """Scratch memory is that of a chunk, whatever the number of elements."""
    tensor = torch.zeros(3 * eager.CHUNK + 1, dtype=oracle.TORCH_DTYPES[dtype])
    rows = torch.empty((1, ROW_WORDS), dtype=torch.int32)
    kernel = eager.EagerKernel()
    kernel.measure([tensor[:1].clone()], rows)
    own_bytes = tensor.untyped_storage().nbytes()

    with Watcher() as watcher:
        kernel.measure([tensor], rows)

    assert watcher.largest == max(own_bytes, 4 * eager.CHUNK)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "float8_e5m2"])
def test_chunks_are_put_together(dtype: str) -> None:
    """Odd elements in one chunk, ordinary ones in the others."""
    tensor = torch.randn(2 * eager.CHUNK + 100).to(oracle.TORCH_DTYPES[dtype])
    tensor.view(-1)[eager.CHUNK + 5] = float("inf")

    assert oracle.measured(eager.EagerKernel(), [tensor]) == [reference.histogram(tensor)]
