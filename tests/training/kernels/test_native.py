"""The native kernel: how it is compiled, and what it does not do."""

from __future__ import annotations

import platform
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampwatch.training.kernels import native, reference
from ampwatch.training.kernels.rows import ROW_WORDS
from tests.training.kernels import oracle

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


def test_other_threads_run_meanwhile(native_kernel: native.NativeKernel) -> None:
    """The interpreter lock is released while the elements are read."""
    tensor = torch.ones(1)
    tensors = [torch.ones(4_000_000)] * 100
    rows = torch.empty((100, ROW_WORDS), dtype=torch.int32)
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.perf_counter())

    native_kernel.measure([tensor], rows)
    thread = threading.Thread(target=tick)
    thread.start()
    begin = time.perf_counter()
    native_kernel.measure(tensors, rows)
    end = time.perf_counter()
    done.set()
    thread.join()

    middle = [t for t in ticks if begin + (end - begin) / 4 < t < end - (end - begin) / 4]
    assert len(middle) > 10


def test_too_few_rows_are_refused(native_kernel: native.NativeKernel) -> None:
    """Rather than written beyond."""
    rows = torch.empty((1, ROW_WORDS), dtype=torch.int32)

    with pytest.raises(ValueError, match="a row for each of 2 tensors, got 1"):
        native_kernel.measure([torch.ones(1), torch.ones(1)], rows)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are those of x86-64")
@needs_compiler
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
    """Patience is limited, and no process stays behind."""
    pid = tmp_path / "pid"
    sleep = shutil.which("sleep")
    _compilers(tmp_path / "bin", monkeypatch, f'{sleep} 60 & echo $! > "{pid}"; wait')
    monkeypatch.setattr(native, "PATIENCE_S", 3.0)

    begin = time.monotonic()
    assert native.load() is None

    assert time.monotonic() - begin < 55  # it would sleep for 60
    assert _has_ended(int(pid.read_text(encoding="utf-8")))


def _has_ended(pid: int) -> bool:
    for _ in range(1000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        except FileNotFoundError:
            return True
        if state[0] == "Z":  # nobody has asked for it yet
            return True
        time.sleep(0.05)
    return False


@needs_compiler
def test_without_a_place_for_the_library_there_is_no_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some machines have a temporary directory that is full or gone."""
    monkeypatch.setattr(native.tempfile, "tempdir", str(tmp_path / "nowhere"))

    assert native.load() is None


@needs_compiler
def test_a_library_that_may_not_be_loaded_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some temporary directories are mounted without the right to execute."""

    def refuse(_path: str) -> None:
        msg = "failed to map segment from shared object: Operation not permitted"
        raise OSError(msg)

    monkeypatch.setattr(native.ctypes, "CDLL", refuse)

    assert native.load() is None
