"""The newest records of one rank: what is said of it right now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.wire.records import (
        Finding,
        MemoryRecord,
        OptimizerRecord,
        RangeRecord,
        StepRecord,
    )


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest records of one rank.

    Attributes:
        started_ns: Unix time at which ``monitor()`` was called. Unit: ns.
        step: The newest iteration; ``None`` before the first.
        loss: The newest loss that was handed to the scaler, unscaled; ``None`` before the first.
        optimizers: The newest record of each optimizer.
        gradient: The newest ranges of all gradients together; ``None`` before the first.
        autocast_dtypes: Names of the dtypes of autocast that were seen.
        findings: The findings so far.
        memory: The newest memory that the training takes; ``None`` before the first.
    """

    started_ns: int
    step: StepRecord | None
    loss: float | None
    optimizers: Sequence[OptimizerRecord]
    gradient: RangeRecord | None
    autocast_dtypes: Sequence[str]
    findings: Sequence[Finding]
    memory: MemoryRecord | None = None
