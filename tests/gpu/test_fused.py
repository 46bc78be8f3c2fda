"""The Triton kernel on a device: values, streams, graphs, memory. The same on CUDA and ROCm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from ampwatch.numerics.encodings import DTYPES
from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.training.kernels.base import Kernel
from ampwatch.training.kernels.rows import MAX_NUMEL, ROW_WORDS, decode
from tests.gpu.syncs import sync_debug_mode
from tests.training.kernels.reference import histogram

DEVICE = "cuda"


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    pytest.importorskip("triton", reason="Triton is not installed")
    from ampwatch.training.kernels.fused import TritonKernel  # noqa: PLC0415 - imports Triton

    return TritonKernel()


def _rows(count: int) -> Tensor:
    return torch.full((count, ROW_WORDS), 77, dtype=torch.int32, device=DEVICE)


def _decoded(pieces: Sequence[Tensor], rows: Tensor) -> list[ExponentHistogram]:
    return [
        decode(row.numpy().tobytes(), str(piece.dtype).removeprefix("torch."), piece.numel())
        for piece, row in zip(pieces, rows.cpu(), strict=True)
    ]


def _check(kernel: Kernel, pieces: Sequence[Tensor], gate: Tensor | None = None) -> None:
    rows = _rows(len(pieces) + 1)
    kernel.measure(pieces, rows, gate=gate)

    assert _decoded(pieces, rows[:-1]) == [histogram(piece.cpu()) for piece in pieces]
    assert rows[-1].eq(77).all()


def _patterns(dtype: torch.dtype) -> Tensor:
    bits = 8 * dtype.itemsize
    integers = torch.int8 if bits == 8 else torch.int16
    return torch.arange(-(2 ** (bits - 1)), 2 ** (bits - 1)).to(integers).view(dtype).to(DEVICE)


@pytest.mark.parametrize("name", [name for name in DTYPES if name not in {"float32", "float64"}])
def test_every_pattern_counts_as_in_the_reference(kernel: Kernel, name: str) -> None:
    """All of them together, and in a piece that is read one element at a time."""
    patterns = _patterns(getattr(torch, name))

    _check(kernel, [patterns, patterns[1:], patterns[:1]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_binade_and_its_edges_count_as_in_the_reference(
    kernel: Kernel, dtype: torch.dtype
) -> None:
    """Subnormal numbers too: the device may flush them in arithmetic, not here."""
    integers, smallest = (torch.int32, -149) if dtype is torch.float32 else (torch.int64, -1074)
    largest = 127 if dtype is torch.float32 else 1023
    powers = torch.tensor([2.0**e for e in range(smallest, largest + 1)], dtype=torch.float64)
    keys = powers.to(dtype).view(integers)
    edges = torch.cat([keys - 1, keys, keys + 1]).view(dtype)
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan], dtype=dtype)
    everything = torch.cat([edges, -edges, special]).to(DEVICE)

    _check(kernel, [everything, everything[everything.isfinite()], powers.to(dtype).to(DEVICE)])
    _check(kernel, list(everything[::37].split(1)))


@pytest.mark.parametrize("name", DTYPES)
def test_large_tensors_count_as_in_the_reference(kernel: Kernel, name: str) -> None:
    """Several sections in each program, an end off the beat, half of it zeros."""
    torch.manual_seed(0)
    values = torch.randn(3_000_017, device=DEVICE) * 1e-3
    wide = torch.ldexp(values, torch.randint(-60, 60, values.shape, device=DEVICE))
    pieces = [x.to(getattr(torch, name)) for x in (values, values.relu(), wide)]

    _check(kernel, [*pieces, pieces[0][3:], pieces[0][:0]])


def test_equal_elements_do_not_overflow_a_counter(kernel: Kernel) -> None:
    """Full sections: every mark in the same position."""
    ones = torch.ones(50_000_000, device=DEVICE, dtype=torch.bfloat16)
    rows = _rows(1)
    kernel.measure([ones], rows)
    (measured,) = _decoded([ones], rows)

    assert measured.by_exponent() == {0: 50_000_000}
    assert (measured.amax, measured.amin, measured.zeros) == (1.0, 1.0, 0)


def test_the_longest_piece_is_counted_to_its_end(kernel: Kernel) -> None:
    """Addresses and counts reach beyond 31 bits."""
    if torch.cuda.mem_get_info()[0] < 2 * MAX_NUMEL:
        pytest.skip("the device has no 4 GB to spare")
    piece = torch.zeros(MAX_NUMEL, dtype=torch.int8, device=DEVICE).view(torch.float8_e5m2)
    piece[-3:] = 2.0
    rows = _rows(1)
    kernel.measure([piece], rows)
    (measured,) = _decoded([piece], rows)

    assert measured.zeros == MAX_NUMEL - 3
    assert measured.by_exponent() == {1: 3}


def test_measuring_never_waits(kernel: Kernel) -> None:
    """With addresses known and new; PyTorch itself would raise at a synchronisation."""
    gate = torch.ones(1, device=DEVICE)
    rows = _rows(40)
    kept: list[list[Tensor]] = []
    for debug_mode in ("default", "error"):  # the first time compiles
        with sync_debug_mode(debug_mode):
            for turn in range(4):
                pieces = [torch.ones(1000 + turn, device=DEVICE) for _ in range(20)]
                pieces += [piece.half() for piece in pieces]
                kernel.measure(pieces, rows)
                kernel.measure(pieces, rows)
                kernel.measure(pieces, rows, gate=gate)
                kept.append(pieces)

    assert _decoded(kept[-1], rows) == [histogram(piece.cpu()) for piece in kept[-1]]


@pytest.mark.nightly
def test_the_host_is_back_while_the_device_is_still_busy(kernel: Kernel) -> None:
    """A new table is uploaded behind what the device has to do before."""
    pieces = [torch.randn(1000, device=DEVICE)]
    rows = _rows(1)
    kernel.measure([torch.randn(1000, device=DEVICE)], rows)
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)
    kernel.measure(pieces, rows)
    done.record()
    early = done.query()

    assert not early
    assert _decoded(pieces, rows) == [histogram(pieces[0].cpu())]


def test_tensors_may_be_given_back_as_soon_as_measure_returns(kernel: Kernel) -> None:
    """Gradients freed by ``zero_grad(set_to_none=True)``: their memory is filled by others next."""
    torch.manual_seed(0)
    expected, found = [], []
    for turn in range(30):
        piece = torch.randn(100_000, device=DEVICE) * 2.0**turn
        expected.append(piece.clone())
        found.append(_rows(1))
        kernel.measure([piece], found[-1])
        del piece
        torch.full((100_000,), math.nan, device=DEVICE)

    assert _decoded(expected, torch.cat(found)) == [histogram(x.cpu()) for x in expected]


def test_streams_do_not_see_each_others_tables(kernel: Kernel) -> None:
    """Tensors have the same results on a stream that is blocked and on one that is not."""
    pieces = [torch.randn(50_000, device=DEVICE) for _ in range(5)]
    rows = [_rows(5) for _ in range(3)]
    streams = [torch.cuda.Stream() for _ in range(3)]
    kernel.measure(pieces, rows[0])
    torch.cuda.synchronize()
    with torch.cuda.stream(streams[0]):
        torch.cuda._sleep(500_000_000)
    for stream, out in zip(streams, rows, strict=True):
        with torch.cuda.stream(stream):
            kernel.measure(pieces, out)
    torch.cuda.synchronize()

    for out in rows:
        assert _decoded(pieces, out) == [histogram(piece.cpu()) for piece in pieces]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one device only")
def test_pieces_need_not_be_on_the_current_device(kernel: Kernel) -> None:
    """The device of the rows counts, and the current one stays as it is."""
    piece = torch.randn(1000, device="cuda:1")
    rows = torch.zeros(1, ROW_WORDS, dtype=torch.int32, device="cuda:1")
    kernel.measure([piece], rows)

    assert _decoded([piece], rows) == [histogram(piece.cpu())]
    assert torch.cuda.current_device() == 0


def test_a_gate_of_zero_leaves_words_of_zero_and_any_other_is_open(kernel: Kernel) -> None:
    """The gate is read when the device gets there, not when ``measure`` is called."""
    pieces = [torch.randn(10_000, device=DEVICE), torch.randn(10, device=DEVICE).half()]
    gate = torch.ones(1, device=DEVICE)
    rows = _rows(2)
    torch.cuda._sleep(100_000_000)
    gate.zero_()
    kernel.measure(pieces, rows, gate=gate)

    assert rows.eq(0).all()
    for value in (1.0, 65536.0, math.inf, math.nan):
        _check(kernel, pieces, gate.fill_(value))


def test_memory_stays_flat_over_a_thousand_calls_with_new_addresses(kernel: Kernel) -> None:
    """Training that frees its gradients after each step."""
    rows = _rows(20)
    held: list[Tensor] = []

    def call(turn: int) -> None:
        held[:] = [torch.empty(1000 + 16 * (turn % 13), device=DEVICE) for _ in range(20)]
        kernel.measure(held, rows)

    for turn in range(100):
        call(turn)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for turn in range(1000):
        call(turn)
    torch.cuda.synchronize()

    assert torch.cuda.memory_reserved() == before[1]
    assert abs(torch.cuda.memory_allocated() - before[0]) < 64 * 1024


# A warm-up in another stream than that of the capture: from 2.10 on PyTorch warns of it.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
def test_gradients_of_a_replayed_graph_are_measured_between_replays(kernel: Kernel) -> None:
    """The training is in a graph, the measurement is not."""
    torch.manual_seed(0)
    model = nn.Linear(64, 64).to(DEVICE)
    batch = torch.randn(32, 64, device=DEVICE)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(batch).square().mean().backward()
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(batch).square().mean().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    for factor in (1.0, 1000.0):
        batch.mul_(factor)
        for gradient in gradients:
            gradient.zero_()
        graph.replay()
        _check(kernel, gradients)
