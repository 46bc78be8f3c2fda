"""Dtypes that autocast regions ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ampwatch.training.hooks.events import FactsChanged
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.kernels.dtypes import name_of
from ampwatch.training.private import is_enabled_region

if TYPE_CHECKING:
    from ampwatch.training.hooks.events import AutocastEntering
    from ampwatch.training.iteration.context import Context


class AutocastSensor(Sensor):
    """Notes the dtype of every enabled ``torch.autocast`` region that gradients are recorded in.

    A region inside a compiled function is not entered by Python and is not seen.

    Args:
        context: Shared parts of the training; ``autocast_dtypes`` is filled.
    """

    name = "autocast"
    rests = True

    def __init__(self, context: Context) -> None:
        self._bus = context.bus
        self._dtypes = context.autocast_dtypes
        self._last: torch.dtype | None = None

    def autocast_entering(self, event: AutocastEntering) -> None:
        """Note the dtype of the region that begins."""
        region = event.region
        dtype = region.fast_dtype
        # Evaluation and teachers may run in another dtype than the training does.
        if dtype is self._last or not is_enabled_region(region) or not torch.is_grad_enabled():
            return
        self._last = dtype
        name = name_of(dtype)
        if name not in self._dtypes:
            self._dtypes.append(name)
            self._bus.emit(FactsChanged())
