"""The native kernel: how it is compiled, and what it does not do."""

from __future__ import annotations

import _ctypes
import math
import os
import platform
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampwatch.training.kernels import native, reference
from ampwatch.training.kernels.base import BLOCK
from ampwatch.training.kernels.dtypes import FLOATS
from ampwatch.training.kernels.rows import ROW_WORDS
from tests.training.kernels import oracle

if TYPE_CHECKING:
    from pathlib import Path

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, native.COMPILERS)),
    reason="the native kernel needs a C compiler: cc, gcc or clang",
)


class OpCounter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.ops.append(func.name())
        return func(*args, **(kwargs or {}))


def _compilers(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put one compiler on the path: a shell script."""
    directory.mkdir()
    compiler = directory / "cc"
    compiler.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(directory))


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that temporary ones are made in."""
    places = tmp_path / "temporary"
    places.mkdir()
    monkeypatch.setattr(native.tempfile, "tempdir", str(places))
    return places


def _works(kernel: native.NativeKernel | None) -> bool:
    tensor = torch.randn(100)
    return kernel is not None and oracle.measured(kernel, [tensor]) == [reference.histogram(tensor)]


def test_measuring_calls_no_op(native_kernel: native.NativeKernel) -> None:
    """Nothing shows up in the user's profiles, flop counts and dispatch modes."""
    tensors = [torch.randn(100), torch.zeros(3, 3, dtype=torch.float16)]
    rows = torch.empty((2, ROW_WORDS), dtype=torch.int32)

    with OpCounter() as counter:
        native_kernel.measure(tensors, rows, stride=[1, 2])

    assert counter.ops == []
    assert int(rows[0].sum()) != 0


@pytest.mark.parametrize("dtype", sorted(FLOATS, key=str), ids=str)
def test_a_check_finds_what_is_not_finite_wherever_it_lies(
    native_kernel: native.NativeKernel, dtype: torch.dtype
) -> None:
    """At each place around the ends of blocks and vectors, and nothing where all is finite."""
    check = native_kernel.finite_checks[dtype]
    limits = torch.finfo(dtype)
    numel = 2 * BLOCK + 35
    tensor = (torch.linspace(-1, 1, numel, dtype=torch.float64) * limits.max).to(dtype)
    tensor[::7] = limits.smallest_normal / 2
    tensor[3] = -0.0
    expected = []
    found = [check(tensor.data_ptr(), numel), check(tensor.data_ptr(), 0)]
    for place in (0, 1, 31, BLOCK - 1, BLOCK, 2 * BLOCK + 34):
        for value in (math.inf, -math.inf, math.nan, -math.nan):
            before = tensor[place].clone()
            tensor[place] = value
            expected.append(bool(tensor.isfinite().all()))
            found.append(check(tensor.data_ptr(), numel))
            tensor[place] = before

    assert found == [1, 1, *map(int, expected)]
    assert not any(expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_check_says_of_each_pattern_what_torch_says(
    native_kernel: native.NativeKernel, dtype: torch.dtype
) -> None:
    """All 65536 of them, one at a time."""
    patterns = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    check = native_kernel.finite_checks[dtype]
    found = [check(patterns.data_ptr() + 2 * place, 1) for place in range(65536)]

    assert found == patterns.isfinite().int().tolist()


def test_where_there_is_no_memory_nothing_is_known_to_be_finite(
    native_kernel: native.NativeKernel,
) -> None:
    """An address of nothing is not read."""
    assert [check(0, 8) for check in native_kernel.finite_checks.values()] == [0] * len(FLOATS)


def test_other_threads_run_meanwhile(native_kernel: native.NativeKernel) -> None:
    """Ctypes releases the interpreter lock but for functions of a ``PyDLL``, which the checks are."""
    measuring = (native_kernel._measure, native_kernel._squares, native_kernel._measure_blocks)
    calls = (*measuring, *native_kernel.finite_checks.values())
    holds = [bool(type(call)._flags_ & _ctypes.FUNCFLAG_PYTHONAPI) for call in calls]
    assert holds == [False] * len(measuring) + [True] * len(FLOATS)


def test_too_few_rows_are_refused(native_kernel: native.NativeKernel) -> None:
    """Rather than written beyond."""
    rows = torch.empty((1, ROW_WORDS), dtype=torch.int32)

    with pytest.raises(ValueError, match="a row for each of 2 tensors, got 1"):
        native_kernel.measure([torch.ones(1), torch.ones(1)], rows)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are those of x86-64")
@needs_compiler
@pytest.mark.nightly
@pytest.mark.parametrize("flag", ["-march=x86-64", "-march=x86-64 -O0", "-fno-tree-vectorize"])
def test_the_counts_are_the_same_with_other_instructions(
    flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a processor with narrower vectors, and with none."""
    monkeypatch.setattr(native, "FLAGS", (*flag.split(), *native.FLAGS[3:]))
    kernel = native.load()
    assert kernel is not None
    pieces = [
        torch.full((5000,), 1.5),
        torch.randn(10_000) * 1e-3,
        oracle.bits(range(0, 2**32, 2**32 // 9001), "float32"),
        oracle.all_patterns("float16"),
        oracle.all_patterns("bfloat16"),
    ]

    assert oracle.measured(kernel, pieces) == list(map(reference.histogram, pieces))


@needs_compiler
def test_nothing_is_left_of_the_library(places: Path) -> None:
    """The file of the library is gone, and the kernel works."""
    kernel = native.load()

    assert _works(kernel)
    assert not list(places.iterdir())


def test_without_a_compiler_there_is_no_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And nothing is said about it."""
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))

    assert native.load() is None
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "script",
    [
        "echo no; echo no >&2; exit 1",  # fails loudly
        "kill -9 $$",
        "exit 0",  # writes nothing
        'while [ "$1" != -o ]; do shift; done; echo nonsense > "$2"',
    ],
)
def test_with_a_broken_compiler_there_is_no_kernel(
    script: str,
    tmp_path: Path,
    places: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """No exception, no output, nothing left to load but what is whole."""
    _compilers(tmp_path / "bin", monkeypatch, script)

    assert native.load() is None
    assert capfd.readouterr() == ("", "")
    assert not list(places.iterdir())


def test_a_compiler_that_hangs_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patience is limited, and no process stays behind: each holds an end of the pipe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    script = f'exec 9>"{pipe}"; {shutil.which("sleep")} 600 & echo >&9; wait'
    _compilers(tmp_path / "bin", monkeypatch, script)

    class Impatient(subprocess.Popen[bytes]):
        """Waits until the compiler has a child, and no longer."""

        def communicate(self, *_: Any, **__: Any) -> Any:
            self.pipe = pipe.open("rb")
            self.pipe.readline()
            raise subprocess.TimeoutExpired(self.args, native.PATIENCE_S)

        def __exit__(self, *raised: object) -> None:
            super().__exit__(*raised)
            with self.pipe:
                assert self.pipe.read() == b""

    monkeypatch.setattr(native.subprocess, "Popen", Impatient)
    assert native.load() is None


@needs_compiler
def test_a_library_that_may_not_be_loaded_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some temporary directories are mounted without the right to execute."""

    def refuse(_path: str) -> None:
        msg = "failed to map segment from shared object: Operation not permitted"
        raise OSError(msg)

    monkeypatch.setattr(native.ctypes, "CDLL", refuse)

    assert native.load() is None
