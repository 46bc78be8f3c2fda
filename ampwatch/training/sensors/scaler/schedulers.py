"""Steps of learning-rate schedulers, read off the schedulers themselves.

Nothing is patched: a scheduler counts its own steps in ``last_epoch``. It knows
its optimizer, but not the other way round, so it is looked for among the
objects of the garbage collector: when the sensor goes on, and again when a
learning rate moves that no known scheduler has moved.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import LRScheduler

from ampwatch.training.model.living import instances_of

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ampwatch.guard import Guard


MAX_SEARCHES = 8
"""Searches in a run. A user who sets learning rates by hand has no scheduler to be found."""


class SchedulerSensor:
    """Tells whether a scheduler of an optimizer was stepped since one last asked.

    Args:
        guard: The fail-open boundary.
    """

    name = "schedulers"

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._moved = False
        self._found: list[tuple[weakref.ref[Any], weakref.ref[Any]]] = []
        self._counts: dict[int, int] = {}
        self._rates: dict[int, list[Any]] = {}
        self._searches = 0

    def install(self) -> None:
        """Find the schedulers there are. Cost: one pass over the collector's objects, ~0.3 us each."""
        self._search()

    def remove(self) -> None:
        """Forget the schedulers."""
        self._found.clear()
        self._counts.clear()
        self._rates.clear()

    def _search(self) -> None:
        self._searches += 1
        self._found = [
            (weakref.ref(scheduler), weakref.ref(scheduler.optimizer))
            for scheduler in instances_of(LRScheduler)
            if getattr(scheduler, "optimizer", None) is not None
        ]

    def moved(self, optimizer: Optimizer) -> bool:
        """Whether a scheduler of ``optimizer`` was stepped since the last call for it.

        Cost: one attribute read per scheduler and parameter group; a search when a
        rate moves that no known scheduler has moved.
        """
        self._moved = False
        self._guard.run(self.look, optimizer)
        return self._moved

    def look(self, optimizer: Optimizer) -> None:
        """Compare the counts of the schedulers of ``optimizer`` with those of the last time."""
        self._moved = self._any_advanced(optimizer)
        # A rate that is a tensor is not compared: on a device that would be a sync.
        rates = [g["lr"] for g in optimizer.param_groups if isinstance(g["lr"], float)]
        before = self._rates.get(id(optimizer), rates)
        self._rates[id(optimizer)] = rates
        if rates != before and not self._moved and self._searches < MAX_SEARCHES:
            known = self._of(optimizer)
            self._search()
            new = [s for s in self._of(optimizer) if not any(s is k for k in known)]
            self._moved = any(getattr(s, "last_epoch", 0) > 0 for s in new)
            self._any_advanced(optimizer)

    def _any_advanced(self, optimizer: Optimizer) -> bool:
        # Each of them is asked, also after the first yes: asking is what counts.
        advanced = [self._advanced(scheduler) for scheduler in self._of(optimizer)]
        return any(advanced)

    def _of(self, optimizer: Optimizer) -> list[Any]:
        pairs = ((scheduler(), owner()) for scheduler, owner in self._found)
        return [s for s, owner in pairs if s is not None and owner is optimizer]

    def _advanced(self, scheduler: Any) -> bool:
        # A ChainedScheduler has no count; those it chains are found by themselves.
        count = getattr(scheduler, "last_epoch", 0)
        before = self._counts.get(id(scheduler))
        self._counts[id(scheduler)] = count
        # A count that fell was loaded or restarted by the user, which is no step.
        return before is not None and count > before
