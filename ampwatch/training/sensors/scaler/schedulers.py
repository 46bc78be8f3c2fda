"""Steps of learning-rate schedulers, read off the schedulers themselves.

Nothing is patched: a scheduler counts its own steps in ``last_epoch``. It knows
its optimizer, but not the other way round, so it is searched for among the
objects of the garbage collector: when the sensor goes on, and again when a
learning rate moves that no known scheduler has moved.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import LRScheduler

from ampwatch.training.hooks.events import SchedulerStepped
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.model.living import instances_of

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ampwatch.training.hooks.events import StepBegan
    from ampwatch.training.iteration.context import Context

MAX_SEARCHES = 8
"""Searches in a run. A user who sets learning rates by hand has no scheduler to be found."""


class SchedulerSensor(Sensor):
    """Reports a scheduler that was stepped since its optimizer stepped last.

    Args:
        context: Shared parts of the training.

    Cost:
        At set-up one pass over the collector's objects, ~0.3 us each. A step through the scaler:
        one attribute read per scheduler and parameter group; a search when a rate moves that no
        known scheduler has moved.
    """

    name = "schedulers"

    def __init__(self, context: Context) -> None:
        self._bus = context.bus
        self._found: list[tuple[weakref.ref[Any], weakref.ref[Any]]] = []
        self._counts: dict[int, int] = {}
        self._rates: dict[int, list[Any]] = {}
        self._searches = 0

    def installed(self) -> None:
        """Find the schedulers that exist."""
        self._search()

    def removed(self) -> None:
        """Forget the schedulers."""
        self._found.clear()
        self._counts.clear()
        self._rates.clear()

    def step_began(self, event: StepBegan) -> None:
        """Compare the counts of the schedulers of an optimizer with those of its last step."""
        if event.scaler.is_enabled() and self._has_moved(event.optimizer):
            self._bus.emit(SchedulerStepped(event.optimizer))

    def _search(self) -> None:
        self._searches += 1
        self._found = [
            (weakref.ref(scheduler), weakref.ref(scheduler.optimizer))
            for scheduler in instances_of(LRScheduler)
            if getattr(scheduler, "optimizer", None) is not None
        ]

    def _has_moved(self, optimizer: Optimizer) -> bool:
        moved = bool(self._found) and self._any_advanced(optimizer)
        rates: list[float] = []
        for group in optimizer.param_groups:
            # A rate that is a tensor is not compared: on a device that would be a sync.
            if isinstance(group["lr"], float):
                rates.append(group["lr"])  # noqa: PERF401 - a comprehension is a call
        before = self._rates.get(id(optimizer), rates)
        self._rates[id(optimizer)] = rates
        if rates != before and not moved and self._searches < MAX_SEARCHES:
            known = self._of(optimizer)
            self._search()
            new = [s for s in self._of(optimizer) if not any(s is k for k in known)]
            moved = any(getattr(s, "last_epoch", 0) > 0 for s in new)
            self._any_advanced(optimizer)
        return moved

    def _any_advanced(self, optimizer: Optimizer) -> bool:
        any_advanced = False
        # All counts are noted, also after the first that has moved: the next step needs them.
        for scheduler in self._of(optimizer):
            # A ChainedScheduler has no count; the schedulers it chains are found by themselves.
            count = getattr(scheduler, "last_epoch", 0)
            before = self._counts.get(id(scheduler))
            self._counts[id(scheduler)] = count
            # A count that fell was loaded or restarted by the user, which is no step.
            any_advanced |= before is not None and count > before
        return any_advanced

    def _of(self, optimizer: Optimizer) -> list[Any]:
        found = []
        for scheduler, owner in self._found:
            if owner() is optimizer and (living := scheduler()) is not None:
                found.append(living)
        return found
