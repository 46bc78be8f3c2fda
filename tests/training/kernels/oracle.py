"""The oracle for kernels: one element at a time, in plain Python."""

from __future__ import annotations

import ctypes
import math
import struct
from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from ampwatch.numerics.encodings import DTYPES
from ampwatch.numerics.exponents import MAX_EXPONENT, MIN_EXPONENT, ExponentHistogram
from ampwatch.training.kernels.base import Kernel
from ampwatch.training.kernels.rows import ROW_BYTES, ROW_WORDS, decode

TORCH_DTYPES = {name: getattr(torch, name) for name in DTYPES}
FLOAT8 = [name for name in DTYPES if name.startswith("float8")]
GARBAGE = -0x5A5A5A5B


def bits(patterns: Sequence[int], dtype: str) -> torch.Tensor:
    """Return the tensor of these bit patterns."""
    real = TORCH_DTYPES[dtype]
    code = {1: "B", 2: "H", 4: "I", 8: "Q"}[real.itemsize]
    if not patterns:
        return torch.empty(0, dtype=real)
    return torch.frombuffer(bytearray(struct.pack(f"{len(patterns)}{code}", *patterns)), dtype=real)


def all_patterns(dtype: str) -> torch.Tensor:
    """Return every element that a dtype of 8 or 16 bits has."""
    return bits(range(256 ** TORCH_DTYPES[dtype].itemsize), dtype)


def values(tensor: torch.Tensor) -> list[float]:
    """Return the elements; each dtype is exact in a Python float."""
    flat = tensor.detach().reshape(-1)
    if tensor.dtype.itemsize == 1:
        flat = flat.float()
    return [float(value) for value in flat.tolist()]


def exponent(value: float) -> int:
    """Return the exponent of the bin of a finite number above 0."""
    fraction, power = math.frexp(value)  # fraction in [0.5, 1)
    return min(max(power - (fraction == 0.5), MIN_EXPONENT), MAX_EXPONENT)


def histogram(numbers: Iterable[float]) -> ExponentHistogram:
    """Return the histogram of ``numbers``."""
    numbers = list(numbers)
    finite = [abs(x) for x in numbers if math.isfinite(x) and x != 0]
    counted = Counter(exponent(x) for x in finite)
    first = min(counted, default=0)
    last = max(counted, default=-1)
    return ExponentHistogram(
        first,
        tuple(counted[e] for e in range(first, last + 1)),
        zeros=sum(x == 0 for x in numbers),
        nans=sum(math.isnan(x) for x in numbers),
        positive_infs=sum(x == math.inf for x in numbers),
        negative_infs=sum(x == -math.inf for x in numbers),
        amax=max(finite, default=0.0),
        amin=min(finite, default=math.inf),
        numel=len(numbers),
    )


def rows_of(
    kernel: Kernel, pieces: Sequence[torch.Tensor], stride: Sequence[int] | None = None
) -> list[bytes]:
    """Measure into rows full of garbage; return what is in them, and check the one beyond."""
    rows = torch.full((len(pieces) + 1, ROW_WORDS), GARBAGE, dtype=torch.int32)
    kernel.measure(pieces, rows, stride=stride)
    assert rows[-1].eq(GARBAGE).all()
    address = rows.data_ptr()
    return [ctypes.string_at(address + i * ROW_BYTES, ROW_BYTES) for i in range(len(pieces))]


def measured(
    kernel: Kernel, pieces: Sequence[torch.Tensor], stride: Sequence[int] | None = None
) -> list[ExponentHistogram]:
    """Measure and decode."""
    return [
        decode(row, str(piece.dtype).removeprefix("torch."), piece.numel())
        for row, piece in zip(rows_of(kernel, pieces, stride), pieces, strict=True)
    ]
