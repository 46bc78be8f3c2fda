"""The kernel for tensors in host memory, compiled on the machine it runs on.

``histogram.c`` is compiled once per machine, in a fraction of a second, for the instructions
that its processor has, and kept. Where there is no compiler, there is no native kernel.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import tempfile
from array import array
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ampwatch.kernels.encodings import DTYPES
from ampwatch.kernels.rows import ROW_BYTES, ROW_WORDS, word
from ampwatch.runtime import private_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c11", "-O3", "-march=native", "-shared", "-fPIC", "-x", "c", "-")
PATIENCE_S = 30.0
"""Time a compiler is given. Unit: s."""

_CODES = {getattr(torch, name): code for code, name in enumerate(DTYPES)}
_WORDS = array("H", [word(name, p) for name in DTYPES if "float8" in name for p in range(256)])
"""Of the dtypes of 8 bits, the words in which their patterns are counted."""

_DIGEST_BYTES = hashlib.sha256().digest_size


class NativeKernel:
    """Measures tensors in host memory, by address: no ATen op is called, and the GIL is released.

    Args:
        library: The compiled ``histogram.c``.
    """

    name = "native"

    def __init__(self, library: ctypes.CDLL) -> None:
        self._measure = library.ampwatch_measure
        self._measure.argtypes = [ctypes.c_int64, *[ctypes.c_void_p] * 6]
        self._measure.restype = None

    def measure(
        self,
        pieces: Sequence[Tensor],
        rows: Tensor,
        *,
        stride: Sequence[int] | None = None,
        gate: Tensor | None = None,
    ) -> None:
        """Fill ``rows[i]`` with the exponents of ``pieces[i]`` (``base.Kernel.measure``)."""
        room = rows.numel() // ROW_WORDS
        if room < len(pieces):
            msg = f"expected a row for each of {len(pieces)} tensors, got {room}; hand over fewer at a time"
            raise ValueError(msg)
        if gate is not None and not ctypes.c_float.from_address(gate.data_ptr()).value:
            ctypes.memset(rows.data_ptr(), 0, len(pieces) * ROW_BYTES)
            return
        arrays = (
            array("Q", [piece.data_ptr() for piece in pieces]),
            array("q", [piece.numel() for piece in pieces]),
            array("B", [_CODES[piece.dtype] for piece in pieces]),
            array("q", stride or [1] * len(pieces)),
            _WORDS,
        )
        addresses = [values.buffer_info()[0] for values in arrays]
        self._measure(len(pieces), *addresses, rows.data_ptr())


def load(cache_dir: Path) -> NativeKernel | None:
    """Return the native kernel, compiled if it is not in the cache.

    Args:
        cache_dir: Where the compiled library is kept: a directory of this user alone, created
            if it is missing. What lies there is executed.

    Returns:
        The kernel; ``None`` without a compiler, without a place for the library, or if
        anything else goes wrong. Never raises, never prints.

    Cost:
        About 0.3 s once per machine, compiler and version of the source; 1 ms afterwards.
        A compiler that hangs is ended after ``PATIENCE_S``.
    """
    with suppress(OSError, subprocess.SubprocessError, AttributeError):
        directory = private_directory(cache_dir)
        compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
        if compiler is None:
            return None
        source = resources.files(__package__).joinpath("histogram.c").read_bytes()
        path = directory / f"histogram-{_key(source, compiler)}.so"
        if not _is_whole(path):
            _compile(source, compiler, path)
        return NativeKernel(ctypes.CDLL(str(path)))
    return None


def _key(source: bytes, compiler: str) -> str:
    """Return what a library must have in common with this call to be of use to it."""
    # The file of the compiler stands for its version: asking it would cost a process.
    status = Path(compiler).stat()
    identity = (source, FLAGS, compiler, status.st_size, status.st_mtime_ns, _processor())
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:32]


def _processor() -> list[str]:
    """Return what ``-march=native`` depends on; a cache may be shared by unlike machines."""
    identity = [platform.machine()]
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        for line in lines:
            if not line.strip():
                break  # the other processors are alike
            if line.startswith(("model", "flags", "Features", "CPU part")):
                identity.append(line)
    return identity


def _is_whole(path: Path) -> bool:
    """Whether a library is there and ends with the digest of the rest.

    The loader maps what it is given: a file that was cut short would end the process.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return False
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    return hashlib.sha256(body).digest() == digest


def _compile(source: bytes, compiler: str, path: Path) -> None:
    """Compile ``source`` into ``path``, which appears whole or not at all.

    Raises:
        OSError: If a file cannot be written or the compiler cannot be started.
        subprocess.SubprocessError: If the compiler fails or takes too long.
    """
    descriptor, name = tempfile.mkstemp(prefix="histogram-", suffix=".tmp", dir=path.parent)
    os.close(descriptor)
    temporary = Path(name)
    try:
        _run([compiler, *FLAGS, "-o", name], source)
        digest = hashlib.sha256(temporary.read_bytes()).digest()
        with temporary.open("ab") as library:  # loaders do not look beyond the last section
            library.write(digest)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _run(command: list[str], source: bytes) -> None:
    """Run a compiler on ``source``, in silence.

    Raises:
        OSError: If it cannot be started.
        subprocess.SubprocessError: If it fails or takes too long.
    """
    with subprocess.Popen(  # noqa: S603 - a compiler from PATH, our own source, no shell
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as compiler:
        try:
            compiler.communicate(source, timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(compiler.pid, signal.SIGKILL)  # with the processes that it has started
            raise
    if compiler.returncode:
        raise subprocess.CalledProcessError(compiler.returncode, command)
