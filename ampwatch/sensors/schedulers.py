"""Steps of learning-rate schedulers, read off the schedulers themselves.

Nothing is patched: a scheduler counts its own steps in ``last_epoch``. It knows
its optimizer, but not the other way round, so it is looked for among the
objects of the garbage collector, when the sensor goes on and once more when an
optimizer shows the mark (``initial_lr``) of a scheduler that came later.
"""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import LRScheduler

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ampwatch.sensors.guard import Guard


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
        self._searched: set[int] = set()

    def install(self) -> None:
        """Find the schedulers there are. Cost: one pass over the collector's objects, ~0.3 us each."""
        self._search()

    def remove(self) -> None:
        """Forget the schedulers."""
        self._found.clear()
        self._counts.clear()

    def _search(self) -> None:
        self._found = [
            (weakref.ref(scheduler), weakref.ref(scheduler.optimizer))
            for scheduler in _instances_of(LRScheduler)
            if getattr(scheduler, "optimizer", None) is not None
        ]

    def moved(self, optimizer: Optimizer) -> bool:
        """Whether a scheduler of ``optimizer`` was stepped since the last call for it.

        Cost: one attribute read per scheduler; one search when a scheduler first
        leaves its mark on an optimizer that had none.
        """
        self._moved = False
        self._guard.run(self.look, optimizer)
        return self._moved

    def look(self, optimizer: Optimizer) -> None:
        """Compare the counts of the schedulers of ``optimizer`` with those of the last time."""
        mine = self._of(optimizer)
        if not mine and self._marked(optimizer):
            self._searched.add(id(optimizer))
            self._search()
            mine = self._of(optimizer)
        # Each of them is asked, also after the first yes: asking is what counts.
        advanced = [self._advanced(scheduler) for scheduler in mine]
        self._moved = any(advanced)

    def _of(self, optimizer: Optimizer) -> list[Any]:
        pairs = ((scheduler(), owner()) for scheduler, owner in self._found)
        return [s for s, owner in pairs if s is not None and owner is optimizer]

    def _marked(self, optimizer: Optimizer) -> bool:
        return id(optimizer) not in self._searched and any(
            "initial_lr" in group for group in optimizer.param_groups
        )

    def _advanced(self, scheduler: Any) -> bool:
        # A ChainedScheduler has no count; those it chains are found by themselves.
        count = getattr(scheduler, "last_epoch", 0)
        before = self._counts.get(id(scheduler))
        self._counts[id(scheduler)] = count
        # A count that fell was loaded or restarted by the user, which is no step.
        return before is not None and count > before


def _instances_of(base: type) -> list[Any]:
    # By the identity of the class: isinstance() asks the object, and lazy proxies
    # among the collector's objects may run code or raise when they are asked.
    wanted: set[int] = set()
    queue = [base]
    while queue:
        kind = queue.pop()
        if id(kind) not in wanted:
            wanted.add(id(kind))
            queue.extend(type.__subclasses__(kind))
    return [x for x in gc.get_objects() if id(type(x)) in wanted]
