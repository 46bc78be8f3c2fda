"""The native kernel: how it is compiled and kept, and what it does not do."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampwatch.kernels import native, reference
from ampwatch.kernels.rows import ROW_WORDS
from tests.kernels import oracle

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


def _library(cache: Path) -> Path:
    (library,) = cache.iterdir()
    return library


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
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a processor with narrower vectors, and with none."""
    monkeypatch.setattr(native, "FLAGS", (*flag.split(), *native.FLAGS[3:]))
    kernel = native.load(tmp_path / "cache")
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
def test_the_library_is_compiled_once_and_private(tmp_path: Path) -> None:
    """The second load leaves the file as it is; nobody else may enter the directory."""
    cache = tmp_path / "new" / "cache"

    assert _works(native.load(cache))
    before = _library(cache).stat()
    assert _works(native.load(cache))

    after = _library(cache).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


@needs_compiler
def test_without_a_compiler_a_kept_library_is_not_trusted_to_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known by the compiler, the processor and the source that it was made with."""
    assert _works(native.load(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))

    assert native.load(tmp_path / "cache") is None


@needs_compiler
@pytest.mark.parametrize("part", ["FLAGS", "_processor"])
def test_another_machine_or_other_flags_have_a_library_of_their_own(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory may be shared by machines with unlike processors."""
    native.load(tmp_path / "cache")
    first = _library(tmp_path / "cache")
    other = (*native.FLAGS[:-3], "-g", *native.FLAGS[-3:])
    monkeypatch.setattr(native, part, other if part == "FLAGS" else lambda: ["another"])

    assert _works(native.load(tmp_path / "cache"))

    assert {first} < set((tmp_path / "cache").iterdir())


def _damaged(tmp_path: Path, content: bytes) -> Path:
    """Return a cache with a library of this content. The one that is in use stays whole."""
    cache = tmp_path / "damaged"
    cache.mkdir(mode=0o700)
    library = cache / _library(tmp_path / "cache").name
    library.write_bytes(content)
    return library


@needs_compiler
@pytest.mark.parametrize("keep", [0, 10, 4096, -1])
def test_a_library_that_was_cut_short_is_compiled_again(keep: int, tmp_path: Path) -> None:
    """Loading it would end the process with a bus error."""
    native.load(tmp_path / "cache")
    whole = _library(tmp_path / "cache").read_bytes()
    library = _damaged(tmp_path, whole[:keep])

    assert _works(native.load(library.parent))
    assert library.stat().st_size == len(whole)


@needs_compiler
def test_a_library_that_was_tampered_with_is_compiled_again(tmp_path: Path) -> None:
    """As little as one bit."""
    native.load(tmp_path / "cache")
    content = bytearray(_library(tmp_path / "cache").read_bytes())
    content[2000] ^= 1
    library = _damaged(tmp_path, content)

    assert _works(native.load(library.parent))
    assert library.read_bytes() != content


@needs_compiler
def test_a_library_that_was_cut_short_is_not_loaded_if_it_cannot_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then there is no kernel."""
    native.load(tmp_path / "cache")
    library = _damaged(tmp_path, _library(tmp_path / "cache").read_bytes()[:4096])

    def refuse(**kwargs: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(native.tempfile, "mkstemp", refuse)

    assert native.load(library.parent) is None


def test_without_a_compiler_there_is_no_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And nothing is said about it."""
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))

    assert native.load(tmp_path / "cache") is None
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
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """No exception, no output, nothing left to load but what is whole."""
    _compilers(tmp_path / "bin", monkeypatch, script)

    assert native.load(tmp_path / "cache") is None
    assert capfd.readouterr() == ("", "")
    assert not list((tmp_path / "cache").glob("*.tmp"))


def test_a_compiler_that_hangs_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patience is limited, and no process stays behind."""
    pid = tmp_path / "pid"
    sleep = shutil.which("sleep")
    _compilers(tmp_path / "bin", monkeypatch, f'{sleep} 60 & echo $! > "{pid}"; wait')
    monkeypatch.setattr(native, "PATIENCE_S", 1.0)

    begin = time.monotonic()
    assert native.load(tmp_path / "cache") is None

    assert time.monotonic() - begin < 20
    assert _has_ended(int(pid.read_text(encoding="utf-8")))


def _has_ended(pid: int) -> bool:
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        except FileNotFoundError:
            return True
        if state[0] == "Z":  # nobody has asked for it yet
            return True
        time.sleep(0.05)
    return False


def test_without_a_place_for_the_library_there_is_no_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is in the way; others may enter; nothing may be written."""
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)

    assert native.load(tmp_path / "file") is None
    assert native.load(tmp_path / "open") is None
    assert not list((tmp_path / "open").iterdir())

    def refuse(**kwargs: Any) -> None:
        raise OSError(30, os.strerror(30))

    monkeypatch.setattr(native.tempfile, "mkstemp", refuse)

    assert native.load(tmp_path / "cache") is None
