"""Time saved if an op ran as well as the device can, from its shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.numerics.formats import PLAIN, kernel_label
from ampwatch.numerics.units.ops import OpKind
from ampwatch.numerics.units.roofline import Matmul, recoverable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ampwatch.diagnosis.evidence.ops import Machine, OpKey, OpTally

ITEM_BYTES = {
    label: fmt.stored_bits // 8
    for fmt in PLAIN
    if fmt.alignment
    for label in (fmt.name, fmt.kernel_label)
}
"""Size of an element of what tensor cores multiply, as dtypes of ops and of kernels are called."""


def saving(
    ops: Iterable[tuple[OpKey, OpTally, float]], machine: Machine, low_dtype: str
) -> float | None:
    """Return how much of the time of some ops the best kernels for their shapes would save.

    Args:
        ops: The ops, and the time that each takes now. Unit: s.
        machine: Where they run.
        low_dtype: What float32 would be computed in instead.

    Returns:
        ``None`` unless it is known of each op: one limit without the other could promise what
        memory, or arithmetic, does not let it keep.
    """
    saved = [_saving_of(key, tally, seconds, machine, low_dtype) for key, tally, seconds in ops]
    known = [seconds for seconds in saved if seconds is not None]
    return sum(known) if known and len(known) == len(saved) else None


def _saving_of(
    key: OpKey, tally: OpTally, seconds: float, machine: Machine, low_dtype: str
) -> float | None:
    dtype = low_dtype if key.dtype == "float32" else key.dtype
    if key.kind is not OpKind.MATMUL or not tally.shape or dtype not in ITEM_BYTES:
        return None
    batch, rows, columns, inner = tally.shape
    matmul = Matmul(batch, rows, columns, inner, item_bytes=ITEM_BYTES[dtype])
    if not matmul.flops:
        return None
    gain = recoverable(
        matmul,
        seconds,
        peak=machine.peak_flops.get(kernel_label(dtype)),
        bandwidth=machine.memory_bandwidth or None,
        calls=max(1, round(tally.flops / matmul.flops)),
    )
    return gain.seconds if gain is not None and gain.complete else None
