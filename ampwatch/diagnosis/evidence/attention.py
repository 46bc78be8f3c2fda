"""Requests of the diagnosis that the sensors observe something more closely."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet


class Attention(NamedTuple):
    """Requests for the next iteration, whatever the governor has planned; looks are planned by it.

    Attributes:
        trace: Something has failed: follow non-finite values from op to op.
        inputs: Something failed lately: add up what the models are given.
        ops: Something may be rounding away: have all ops observed.
        focus: Names of the modules whose outputs are measured.
        failed: The newest iteration that has failed and whose calls are to be made again; -1
            without one.
        failed_scale: The loss scale of that iteration; NaN without one.
        is_unexplained: Whether neither calibration nor a growth of the scale explains that it failed.
        is_known: Whether a failure goes on that is not new any more: nothing is to be made again for now.
        look_every: Iterations of which the operands of ops are to be read in one; 0 for none.
    """

    trace: bool = False
    inputs: bool = False
    ops: bool = False
    focus: AbstractSet[str] = frozenset()
    failed: int = -1
    failed_scale: float = math.nan
    is_unexplained: bool = False
    is_known: bool = False
    look_every: int = 0

    @property
    def is_closer(self) -> bool:
        """Whether the iteration itself is to be observed more closely than planned."""
        return self.trace or self.inputs or self.ops or bool(self.focus)
