"""The kernel for tensors in host memory, compiled on the machine it runs on.

``histogram.c`` is compiled in about a second for the instructions that the processor
has. Where there is no compiler, there is no native kernel.
"""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import signal
import subprocess
import tempfile
from array import array
from importlib import resources
from typing import TYPE_CHECKING

from ampwatch.guard import Suppress
from ampwatch.numerics.encodings import DTYPES, ENCODINGS
from ampwatch.training.kernels.block_rows import BLOCK_ROW_BYTES
from ampwatch.training.kernels.dtypes import FLOATS, MEASURED
from ampwatch.training.kernels.rows import ROW_BYTES, ROW_WORDS, word

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor

    FiniteCheck = Callable[[int, int], int]

COMPILERS = ("cc", "gcc", "clang")
# For this processor alone: the library is loaded at once and never kept.
FLAGS = ("-std=c11", "-O3", "-march=native", "-shared", "-fPIC", "-x", "c", "-")
PATIENCE_S = 30.0
"""Time a compiler is given. Unit: s."""

_CODES = {dtype: DTYPES.index(fmt.name) for dtype, fmt in MEASURED.items()}
"""Codes of the dtypes in ``histogram.c``, where all from ``FLOAT8`` on have 8 bits."""

_BYTES = [name for name in DTYPES if ENCODINGS[name].bits == 8]
_WORDS = array("H", [word(name, pattern) for name in _BYTES for pattern in range(256)])
"""The words in which each pattern of 8 bits is counted, dtype by dtype in the order of ``DTYPES``."""


class NativeKernel:
    """Measures tensors in host memory, by address: no ATen op is called, and the GIL is released.

    Args:
        library: The compiled ``histogram.c``.

    Attributes:
        finite_checks: By dtype, what says of an address and a number of elements from there on
            whether all of them are finite; 0 as well where there is no memory. Each calls no ATen
            op, holds the GIL, and takes a tenth of the time of a sum.
    """

    name = "native"
    max_binned = 0

    def __init__(self, library: ctypes.CDLL) -> None:
        self._measure = library.ampwatch_measure
        # Without argtypes ctypes would pass addresses as C ints, cut to 32 bits. A CDLL, not a PyDLL:
        # the GIL is released for the time of the call.
        self._measure.argtypes = [ctypes.c_int64, *[ctypes.c_void_p] * 7]
        self._measure.restype = None
        self._squares = library.ampwatch_squares
        self._squares.argtypes = [ctypes.c_int64, *[ctypes.c_void_p] * 4]
        self._squares.restype = None
        self._measure_blocks = library.ampwatch_measure_blocks
        number, address = ctypes.c_int64, ctypes.c_void_p
        self._measure_blocks.argtypes = [
            number,
            address,
            address,
            address,
            ctypes.c_int,
            address,
            address,
        ]
        self._measure_blocks.restype = None
        self.finite_checks = _finite_checks(library)

    def measure(
        self,
        pieces: Sequence[Tensor],
        rows: Tensor,
        *,
        stride: Sequence[int] | None = None,
        gate: Tensor | None = None,
        blocks: Tensor | None = None,
    ) -> None:
        """Fill ``rows[i]`` with the exponents of ``pieces[i]`` (``base.Kernel.measure``)."""
        room = rows.numel() // ROW_WORDS
        if room < len(pieces):
            msg = f"expected a row for each of {len(pieces)} tensors, got {room}; hand over fewer at a time"
            raise ValueError(msg)
        # Read from memory: gate.item() would be an ATen op, seen by the user's dispatch modes.
        if gate is not None and not ctypes.c_float.from_address(gate.data_ptr()).value:
            ctypes.memset(rows.data_ptr(), 0, len(pieces) * ROW_BYTES)
            if blocks is not None:
                ctypes.memset(blocks.data_ptr(), 0, len(pieces) * BLOCK_ROW_BYTES)
            return
        arrays = (
            array("Q", [piece.data_ptr() for piece in pieces]),
            array("q", [piece.numel() for piece in pieces]),
            array("B", [_CODES[piece.dtype] for piece in pieces]),
            array("q", stride or [1] * len(pieces)),
            _WORDS,
        )
        # `arrays` keeps the buffers alive until the call has returned; addresses alone would not.
        addresses = [values.buffer_info()[0] for values in arrays]
        out = 0 if blocks is None else blocks.data_ptr()
        self._measure(len(pieces), *addresses, rows.data_ptr(), out)

    def measure_blocks(
        self, pieces: Sequence[Tensor], rows: Tensor, out: Tensor, *, whole: bool = False
    ) -> None:
        """Fill ``out[i]`` with the blocks of ``pieces[i]`` (``base.Kernel.measure_blocks``)."""
        arrays = (
            array("Q", [piece.data_ptr() for piece in pieces]),
            array("q", [piece.numel() for piece in pieces]),
            array("B", [_CODES[piece.dtype] for piece in pieces]),
        )
        addresses = [values.buffer_info()[0] for values in arrays]
        self._measure_blocks(len(pieces), *addresses, whole, rows.data_ptr(), out.data_ptr())

    def norms(self, pieces: Sequence[Tensor], out: Tensor) -> None:
        """Fill ``out[i]`` with the L2 norm of ``pieces[i]`` (``base.Kernel.norms``)."""
        arrays = (
            array("Q", [piece.data_ptr() for piece in pieces]),
            array("q", [piece.numel() for piece in pieces]),
            array("B", [_CODES[piece.dtype] for piece in pieces]),
            array("d", bytes(8 * len(pieces))),
        )
        self._squares(len(pieces), *(values.buffer_info()[0] for values in arrays))
        norms = (ctypes.c_float * len(pieces)).from_address(out.data_ptr())
        norms[:] = [math.sqrt(square) for square in arrays[-1]]


def _finite_checks(library: ctypes.CDLL) -> dict[torch.dtype, FiniteCheck]:
    # A PyDLL: to let go of the GIL for a microsecond invites another thread to keep it for long.
    held = ctypes.PyDLL(library._name, handle=library._handle)  # noqa: SLF001 - loaded once, called in two ways
    checks: dict[torch.dtype, FiniteCheck] = {}
    for dtype in FLOATS:
        check = getattr(held, f"ampwatch_is_finite_{MEASURED[dtype].name}")
        check.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        check.restype = ctypes.c_int
        checks[dtype] = check
    return checks


def load() -> NativeKernel | None:
    """Compile the native kernel and return it.

    Once it is loaded a library needs its file no more: the temporary directory is gone when
    this returns, so nothing is left behind, and nobody can put another library in its place.

    Returns:
        The kernel; ``None`` without a compiler, without a place that programs may be loaded
        from, or if anything else goes wrong. Never raises, never prints.

    Cost:
        About a second. A compiler that hangs is ended after ``PATIENCE_S``.
    """
    # AttributeError: a library that lacks the function.
    with Suppress(OSError, subprocess.SubprocessError, AttributeError):
        compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
        if compiler is None:
            return None
        source = resources.files(__package__).joinpath("histogram.c").read_bytes()
        with tempfile.TemporaryDirectory(prefix="ampwatch-") as place:  # of mode 0700
            library = f"{place}/histogram.so"
            _run([compiler, *FLAGS, "-o", library], source)
            return NativeKernel(ctypes.CDLL(library))
    return None


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
            # The whole group, which is why it has a session of its own: cc starts cc1, as and ld, and
            # they would live on.
            os.killpg(compiler.pid, signal.SIGKILL)
            raise
    if compiler.returncode:
        raise subprocess.CalledProcessError(compiler.returncode, command)
