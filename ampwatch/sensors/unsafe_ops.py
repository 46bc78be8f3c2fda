"""Ops that a GPU refuses to run under autocast, and a CPU runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ampwatch.diagnosis.observations import UnsafeOp
from ampwatch.precision.ops import Phase
from ampwatch.sensors.opvalues import place_name
from ampwatch.sensors.sources import user_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.sensors.opcounts import OpCall
    from ampwatch.sensors.oplistener import OpPlace
    from ampwatch.sensors.regions import Regions

REFUSED = frozenset({"binary_cross_entropy"})
"""On CUDA these raise ``RuntimeError: ... are unsafe to autocast``."""


class UnsafeOps:
    """Looks for such ops inside of an enabled region for the CPU.

    Args:
        regions: Knows the autocast regions.
        observe: Told of each ``UnsafeOp``.

    Cost:
        Less than 1 us an op.
    """

    def __init__(self, regions: Regions, observe: Callable[[object], None]) -> None:
        self._regions, self._observe = regions, observe
        self._step = 0

    def begin(self, step: int) -> None:
        """Iteration ``step`` begins."""
        self._step = step

    def note(self, call: OpCall, place: OpPlace) -> None:
        """An op has returned."""
        if call.info.name not in REFUSED or place.phase is not Phase.FORWARD:
            return
        given = call.args[0]
        if not isinstance(given, torch.Tensor) or given.device.type != "cpu":
            return
        region = next((r for r in reversed(self._regions.here()) if r.device_type == "cpu"), None)
        if region is not None and region.enabled:
            where = place_name(place)
            self._observe(UnsafeOp(self._step, where, call.info.name, region.dtype, user_source()))

    def end(self) -> None:
        """The iteration is over."""
