"""The Triton kernel without a GPU: run by Triton's interpreter, and compiled for four GPUs.

Triton decides when it is imported whether it interprets. So the tests of values run in a
process of their own, which ``test_values_agree_in_the_interpreter`` starts: some at each commit, all by night.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ampwatch.training.kernels.dtypes import MEASURED
from ampwatch.training.kernels.rows import ROW_WORDS, decode
from ampwatch.training.transfer.readback import Link
from ampwatch.training.transfer.slabs import Slab
from tests.training.kernels.reference import histogram
from tests.workshop.absent_gpus import TARGETS, AbsentDriver, compiled_for
from tests.workshop.alone import python

CPU = torch.device("cpu")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

pytestmark = [
    pytest.mark.skipif(
        find_spec("triton") is None,
        reason="Triton is not installed; PyTorch's wheels for CUDA and ROCm bring it",
    ),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
    # The interpreter computes with NumPy, which warns where integers wrap as intended.
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]
interpreted = pytest.mark.skipif(
    not INTERPRETED, reason="runs inside test_values_agree_in_the_interpreter"
)
compiled = pytest.mark.skipif(INTERPRETED, reason="Triton interprets in this process")


def _check(pieces: Sequence[Tensor], gate: Tensor | None = None) -> None:
    """Compare with the reference; the rows have something else in them before."""
    from ampwatch.training.kernels.fused import TritonKernel  # noqa: PLC0415 - needs Triton

    rows = torch.full((len(pieces) + 1, ROW_WORDS), 77, dtype=torch.int32)
    TritonKernel().measure(pieces, rows, gate=gate)
    for piece, row in zip(pieces, rows, strict=False):
        name = str(piece.dtype).removeprefix("torch.")
        assert decode(row.numpy().tobytes(), name, piece.numel()) == histogram(piece)
    assert rows[-1].eq(77).all()


def _set_lanes(lanes: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """The interpreter takes them one by one at the end of a section; return its length."""
    import triton.language as tl  # noqa: PLC0415

    from ampwatch.training.kernels import fused, fused_device  # noqa: PLC0415

    assert fused_device.LANES.value == fused._THREADS
    per_lane = {"LANES": 1, "READ": 4, "STEP": 32, "SECTION": 992}
    wide = {name: each * fused_device.LANES.value for name, each in per_lane.items()}
    assert {name: getattr(fused_device, name).value for name in per_lane} == wide
    for name, each in per_lane.items():
        monkeypatch.setattr(fused_device, name, tl.constexpr(each * lanes))
    return 992 * lanes


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> int:
    """Few lanes, for many short pieces."""
    return _set_lanes(4, monkeypatch)


@pytest.fixture
def one_unit(monkeypatch: pytest.MonkeyPatch) -> int:
    """Many lanes and one program, for a long piece."""
    monkeypatch.setattr("ampwatch.training.kernels.fused._UNITS_PER_PROCESSOR", 1)
    return _set_lanes(64, monkeypatch)


def _patterns(dtype: torch.dtype) -> Tensor:
    bits = 8 * dtype.itemsize
    integers = torch.int8 if bits == 8 else torch.int16
    return torch.arange(-(2 ** (bits - 1)), 2 ** (bits - 1)).to(integers).view(dtype)


OF_BLOCKS = f"{Path(__file__).with_name('test_blocks.py')}::test_the_kernel_for_gpus_counts"


@pytest.mark.rotating
@compiled
@pytest.mark.parametrize(
    "tests",
    [
        pytest.param(
            (
                f"{__file__}::test_edges_of_each_dtype_count_as_in_the_reference",
                f"{__file__}::test_a_gate_of_zero_leaves_words_of_zero_and_any_other_is_open",
                f"{OF_BLOCKS}_some_blocks_as_in_plain_python",
            ),
            id="some",
        ),
        pytest.param(
            (__file__, f"{OF_BLOCKS}_as_in_plain_python"), id="all", marks=pytest.mark.nightly
        ),
    ],
)
def test_values_agree_in_the_interpreter(tests: tuple[str, ...]) -> None:
    """The tests below, in a process in which Triton interprets."""
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert " passed" in python(*command, TRITON_INTERPRET="1", PYTEST_ADDOPTS="").stdout


@interpreted
@pytest.mark.usefixtures("narrow")
def test_edges_of_each_dtype_count_as_in_the_reference() -> None:
    """Both zeros, what is not finite, subnormal numbers, powers of two and the limits."""
    pieces = []
    for dtype in MEASURED:
        limits = torch.finfo(dtype)
        least = limits.smallest_normal
        edges = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.5, limits.max, least, least / 2]
        pieces.append(torch.tensor(edges, dtype=torch.float64).to(dtype))
    _check(pieces)


@interpreted
@pytest.mark.usefixtures("one_unit")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_pattern_of_16_bits_counts_as_in_the_reference(dtype: torch.dtype) -> None:
    """All 65536: subnormal numbers, NaN of all payloads, both zeros."""
    _check([_patterns(dtype)])


@interpreted
@pytest.mark.usefixtures("narrow")
def test_every_pattern_of_8_bits_counts_as_in_the_reference() -> None:
    """All 256 of each format, whose NaN and infinities are all different; each alone, too."""
    formats = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
    _check([_patterns(dtype) for dtype in formats])
    _check([_patterns(dtype)[i : i + 1] for dtype in formats for i in (0, 1, 3, 124, 127, 128)])


@interpreted
@pytest.mark.usefixtures("narrow")
def test_every_binade_of_float32_and_its_edges_count_as_in_the_reference() -> None:
    """From the smallest subnormal number on: the power of two, and one bit less and more."""
    powers = torch.ldexp(torch.ones(277).double(), torch.arange(-149, 128)).float()
    keys = powers.view(torch.int32)
    edges = torch.cat([keys - 1, keys, keys + 1]).view(torch.float32)
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, -math.inf, math.nan, 3.4028235e38])

    _check([torch.cat([edges, -edges, special]), edges[edges >= 2.0**-126], special[:2]])
    _check([special[2:5], special[5:6], special, powers[:24], powers[23:24], powers[22:24]])


@interpreted
@pytest.mark.usefixtures("narrow")
def test_float64_counts_as_in_the_reference_and_beyond_the_axis_at_its_ends() -> None:
    """Magnitudes from 2**-1074 to 2**1023; the extremes stay exact."""
    powers = torch.tensor([math.ldexp(1.0, e) for e in range(-1074, 1024, 233)]).double()
    near = torch.tensor([2.0**e * f for e in (-193, -192, -191, 191, 192) for f in (1, 1.5, -1)])
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan]).double()

    _check([torch.cat([powers, special]), near.double(), special, torch.randn(500).double()])


@interpreted
def test_elements_further_apart_than_a_window_of_32_binades_all_count(narrow: int) -> None:
    """Two windows, and nine; over two sections, each with windows of its own."""
    torch.manual_seed(0)
    for spread in (20, 250):
        exponents = torch.randint(-spread // 2, spread // 2, (narrow + 5,))
        _check([torch.ldexp(torch.randn(narrow + 5), exponents)])


@interpreted
@pytest.mark.usefixtures("narrow")
def test_pieces_of_all_kinds_in_one_call_count_as_in_the_reference() -> None:
    """Odd lengths, empty ones, views off the beat, all dtypes, zeros and a single element."""
    torch.manual_seed(0)
    x = torch.randn(3000)
    _check(
        [x, x[1:], x.half()[3:], x[:0], x.bfloat16(), x.relu(), torch.zeros(65), x[:1], x.double(),
         x.to(torch.float8_e4m3fn)[1:], x.view(30, 100).t(), x.view(2, 5, 300)[1]]
    )  # fmt: skip


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_what_lies_around_a_piece_does_not_count(
    dtype: torch.dtype, narrow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is read from a multiple of 16 bytes on, in which others may have their elements."""
    monkeypatch.setattr("ampwatch.training.kernels.fused._UNITS_PER_PROCESSOR", 1)
    memory = torch.full((2 * narrow,), math.nan, dtype=dtype)
    pieces = [memory[100 * i + i : 100 * i + 100] for i in range(1, 9)]
    pieces.append(memory[1001 : 1100 + narrow])
    for piece in pieces:
        piece.copy_(torch.ldexp(torch.ones(len(piece)), torch.arange(len(piece)) % 40 - 24))
    memory[-5:-2] = torch.inf

    _check([*pieces, memory[-5:-2], memory[-3:]])


@interpreted
def test_every_binary_digit_of_a_count_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the true width: a full section, whose counts have all 17 digits but one, and that one."""
    monkeypatch.setattr("ampwatch.training.kernels.fused._UNITS_PER_PROCESSOR", 1)
    numbers = {1.0: 0b1_0101_0101_0101_0101, 4.0: 0b1001_1010_1010_1010, 8.0: 1}
    assert sum(numbers.values()) == 992 * 128
    section = torch.cat([torch.full((n,), value) for value, n in numbers.items()])

    _check([torch.cat([section, torch.full((1 << 13,), 2.0)])])


@interpreted
def test_a_section_of_zeros_alone_has_no_say_in_the_extremes(narrow: int) -> None:
    """Before, between and after sections that have others; and if there are no others."""
    zeros = torch.zeros(narrow)
    parts = [zeros, torch.tensor([3.0, 0.25, 0.0]), zeros, zeros, torch.tensor([-7.0]), zeros]
    _check([torch.cat(parts)[: 5 * narrow], torch.cat([zeros, zeros])])


@interpreted
@pytest.mark.usefixtures("narrow")
def test_a_gate_of_zero_leaves_words_of_zero_and_any_other_is_open() -> None:
    """The gate is read on the device; NaN is not 0."""
    from ampwatch.training.kernels.fused import TritonKernel  # noqa: PLC0415

    x = torch.randn(100)
    rows = torch.full((3, ROW_WORDS), 77, dtype=torch.int32)
    TritonKernel().measure([x, x], rows, gate=torch.zeros(1))

    assert rows[:2].eq(0).all()
    assert rows[2].eq(77).all()
    for value in (1.0, 1e-45, -2.0, math.inf, math.nan):
        _check([x], gate=torch.full((1,), value))


class _LinkToNowhere(Link):
    """Rows stay where they are: host memory plays the GPU."""

    def landing_place(self, numel: int) -> Tensor:
        return torch.zeros(numel)

    def make_event(self, device: torch.device) -> Any:
        return None

    def make_timer(self, device: torch.device) -> Any:
        return None


@pytest.fixture(params=["sm_90", "gfx942"])
def variants(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return what Triton is asked to compile for a GPU that is not there; nothing is launched."""
    knobs = pytest.importorskip(
        "triton.knobs", reason="this Triton cannot be asked: it has no knobs"
    )
    from triton.runtime import driver  # noqa: PLC0415

    asked: set[str] = set()

    def ask(key: str, **_: object) -> bool:
        asked.add(key)
        return True  # as if it were done elsewhere

    if TARGETS[request.param][0] == "hip":
        monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(driver, "_active", AbsentDriver(request.param))
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", ask)
    return asked


@compiled
def test_after_set_up_nothing_is_left_to_be_compiled_in_a_step(variants: set[str]) -> None:
    """Whatever the alignment of pieces, rows and gates, for each dtype of training, gated or not."""
    from ampwatch.training.kernels.fused import TritonKernel  # noqa: PLC0415

    kernel = TritonKernel()
    Slab(CPU, 8, _LinkToNowhere()).warm_up(kernel)
    warm = set(variants)
    memory = torch.zeros(40_000, dtype=torch.float64)
    words = torch.zeros(9 * ROW_WORDS, dtype=torch.int32)
    scalars = torch.ones(9)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        pieces = [memory.view(dtype)[i : i + n] for i in range(9) for n in (1, 5, 30_000)]
        for i in range(9):
            rows = words[i:].as_strided((8, ROW_WORDS), (ROW_WORDS, 1))
            for gate in (None, scalars[i : i + 1], scalars[i]):
                for begin in range(0, len(pieces), 8):
                    kernel.measure(pieces[begin : begin + 8], rows, gate=gate)
                    kernel.measure(pieces[begin : begin + 1], rows, gate=gate)

    assert variants == warm
    assert len(warm) == len(("float32", "float16", "bfloat16", "empty rows", "rows behind a gate"))


@compiled
@pytest.mark.parametrize(
    ("target", "dtype"),
    [
        ("sm_90", "bfloat16"),
        *(
            pytest.param(target, dtype, marks=pytest.mark.nightly)
            for target in TARGETS
            for dtype in ("float32", "bfloat16", "float16", "float64", "float8_e5m2fnuz")
            if (target, dtype) != ("sm_90", "bfloat16")
        ),
    ],
)
def test_it_compiles_for_a_gpu_that_is_not_there(target: str, dtype: str) -> None:
    """To machine code; 4 elements are read at once, and nothing is indexed in local memory."""
    result = compiled_for(target, dtype)

    if target == "gfx942":
        assert "ScratchSize: 0" in result.asm["amdgcn"]
        assert result.asm["hsaco"]
    else:
        assert ".local" not in result.asm["ptx"]
        vector = {"float64": "v2.b64", "float32": "v4.b32", "float8_e5m2fnuz": "b32"}
        assert f"ld.global.{vector.get(dtype, 'v2.b32')}" in result.asm["ptx"]
        assert result.asm["cubin"]
