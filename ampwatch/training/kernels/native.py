"""The kernel for tensors in host memory: that of the extension module (`native/histogram.c`)."""

from __future__ import annotations

import ctypes
import math
from array import array
from typing import TYPE_CHECKING, Any

from ampwatch.numerics.encodings import DTYPES, ENCODINGS
from ampwatch.training.kernels.dtypes import FLOATS, MEASURED
from ampwatch.training.kernels.rows import BLOCK_ROW_BYTES, ROW_BYTES, ROW_WORDS, word
from ampwatch.training.native import core

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor

    FiniteCheck = Callable[[int, int], bool]

_CODES = {dtype: DTYPES.index(fmt.name) for dtype, fmt in MEASURED.items()}
"""Codes of the dtypes in ``histogram.c``, where all from ``FLOAT8`` on have 8 bits."""

_BYTES = [name for name in DTYPES if ENCODINGS[name].bits == 8]
_WORDS = array("H", [word(name, pattern) for name in _BYTES for pattern in range(256)])
"""The words in which each pattern of 8 bits is counted, dtype by dtype in the order of ``DTYPES``."""


class NativeKernel:
    """Measures tensors in host memory, by address: no ATen op is called, and the GIL is released.

    Attributes:
        finite_checks: By dtype, what says of an address and a number of elements from there on
            whether all of them are finite; false as well where there is no memory. Each calls no ATen
            op, holds the GIL, and takes a tenth of the time of a sum.
    """

    name = "native"
    max_binned = 0

    def __init__(self, module: Any) -> None:
        self._core = module
        self.finite_checks: dict[torch.dtype, FiniteCheck] = {
            dtype: getattr(module, f"is_finite_{MEASURED[dtype].name}") for dtype in FLOATS
        }

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
            *_arrays(pieces),
            array("q", stride or [1] * len(pieces)),
            _WORDS,
        )
        # `arrays` keeps the buffers alive until the call has returned; addresses alone would not.
        addresses = [values.buffer_info()[0] for values in arrays]
        out = 0 if blocks is None else blocks.data_ptr()
        self._core.measure(len(pieces), *addresses, rows.data_ptr(), out)

    def measure_blocks(self, pieces: Sequence[Tensor], rows: Tensor, out: Tensor) -> None:
        """Fill ``out[i]`` with the blocks of ``pieces[i]`` (``base.Kernel.measure_blocks``)."""
        arrays = _arrays(pieces)
        addresses = [values.buffer_info()[0] for values in arrays]
        self._core.measure_blocks(len(pieces), *addresses, rows.data_ptr(), out.data_ptr())

    def norms(self, pieces: Sequence[Tensor], out: Tensor) -> None:
        """Fill ``out[i]`` with the L2 norm of ``pieces[i]`` (``base.Kernel.norms``)."""
        arrays = (*_arrays(pieces), array("d", bytes(8 * len(pieces))))
        self._core.squares(len(pieces), *(values.buffer_info()[0] for values in arrays))
        norms = (ctypes.c_float * len(pieces)).from_address(out.data_ptr())
        norms[:] = [math.sqrt(square) for square in arrays[-1]]


def _arrays(pieces: Sequence[Tensor]) -> tuple[array[int], array[int], array[int]]:
    """Return where pieces lie, how long they are and their dtypes, as C reads them."""
    return (
        array("Q", [piece.data_ptr() for piece in pieces]),
        array("q", [piece.numel() for piece in pieces]),
        array("B", [_CODES[piece.dtype] for piece in pieces]),
    )


def load() -> NativeKernel | None:
    """Return the native kernel; ``None`` where ampwatch was installed without its C part."""
    return None if core is None else NativeKernel(core)
