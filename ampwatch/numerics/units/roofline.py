"""The least time of a matmul, and so how much of its time can be won back.

A matmul is limited by arithmetic or by memory, by its shape: what 632 TFLOP/s elsewhere in a model
promise to a matmul with an inner dimension of 64, memory does not let it keep.
"""

from __future__ import annotations

import math

from msgspec import Struct

ATTAINABLE = 0.75
"""The share of the peak that the best kernels reach in practice: 77 % were measured for cuBLASLt on
an H100, and DCGM's diagnostics take 75 % of tensor-pipe cycles for a saturated GPU."""

MEMORY = "memory"
ARITHMETIC = "arithmetic"


class Matmul(Struct, frozen=True):
    """The shape of one matmul: ``batch`` times (``rows``, ``inner``) @ (``inner``, ``columns``).

    Attributes:
        item_bytes: Of an element of all three matrices.
    """

    batch: int
    rows: int
    columns: int
    inner: int
    item_bytes: int

    @property
    def flops(self) -> int:
        """Multiplications and additions. Unit: FLOP."""
        return 2 * self.batch * self.rows * self.columns * self.inner

    @property
    def traffic(self) -> int:
        """The least that has to be read and written, each matrix once. Unit: bytes."""
        elements = self.rows * self.inner + self.inner * self.columns + self.rows * self.columns
        return self.batch * elements * self.item_bytes

    @property
    def intensity(self) -> float:
        """The arithmetic intensity; 0 for an empty one. Unit: FLOP/B."""
        return self.flops / self.traffic if self.traffic else 0.0


class Gain(Struct, frozen=True):
    """The most that a better kernel would save.

    Attributes:
        seconds: Of the time measured.
        roof: What it could reach. Unit: FLOP/s.
        bound: What limits it then: ``memory`` or ``arithmetic``.
        complete: Whether both limits were known; if not, the gain may be smaller.
    """

    seconds: float
    roof: float
    bound: str
    complete: bool


def recoverable(
    matmul: Matmul, seconds: float, *, peak: float | None, bandwidth: float | None, calls: int = 1
) -> Gain | None:
    """Return how much of the time of a matmul a well-chosen kernel would save, at most.

    For one that is misaligned or of an older generation, hand the matmul as it is. For one in
    float32, hand what it would be: the bytes and the peak of the dtype it could run in.

    Args:
        matmul: The shape, as it could run.
        seconds: Measured, of all calls together.
        peak: Of the dtype it could run in; ``None`` if not known. Unit: FLOP/s.
        bandwidth: Of the device's memory; ``None`` if not known. Unit: B/s.
        calls: How many matmuls of this shape took ``seconds``.

    Returns:
        ``None`` where neither limit is known, or nothing was multiplied.
    """
    limits = {
        ARITHMETIC: ATTAINABLE * peak if peak else math.inf,
        MEMORY: matmul.intensity * bandwidth if bandwidth else math.inf,
    }
    bound = min(limits, key=limits.__getitem__)
    roof = limits[bound]
    if not 0.0 < roof < math.inf:
        return None
    best = calls * matmul.flops / roof
    return Gain(max(0.0, seconds - best), roof, bound, complete=bool(peak and bandwidth))
