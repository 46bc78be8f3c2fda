"""Steps of learning-rate schedules, read off the schedulers and the learning rates themselves.

Nothing is patched: a scheduler counts its own steps in ``last_epoch``. It knows
its optimizer, but not the other way round, so it is searched for among the
objects of the garbage collector that refer to the optimizer: at its first step through an
enabled scaler, which alone skips steps, and again when a learning rate moves that no known scheduler has
moved.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import LRScheduler

from ampwatch.training.hooks.events import SchedulerStepped
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.model.living import referring_to

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ampwatch.training.hooks.events import StepBegan
    from ampwatch.training.iteration.context import Context

MAX_SEARCHES = 8
"""Searches in a run. A user who sets learning rates by hand has no scheduler to be found."""


class SchedulerSensor(Sensor):
    """Reports a schedule that has moved since its optimizer stepped last.

    Cost:
        Nothing at set-up. A step through the scaler: one attribute read per scheduler and parameter
        group, in C where nothing has moved (``seen``); in the first of an optimizer, and when a rate moves that no known scheduler has moved, a
        search among the collector's objects (``referring_to``).
    """

    name = "schedulers"
    batched = frozenset({"step_began"})

    def __init__(self, context: Context) -> None:
        self._bus = context.bus
        self._found: list[tuple[weakref.ref[Any], weakref.ref[Any]]] = []
        self._counts: dict[int, int] = {}
        self._rates: dict[int, list[Any]] = {}
        self._searches = 0

    def removed(self) -> None:
        """Forget the schedulers."""
        self._found.clear()
        self._counts.clear()
        self._rates.clear()

    def step_began(self, event: StepBegan) -> None:
        """Compare the counts of the schedulers of an optimizer with those of its last step."""
        if event.scaler.is_enabled() and self.has_moved(event.optimizer):
            self._bus.emit(SchedulerStepped(event.optimizer))

    def has_moved(self, optimizer: Optimizer) -> bool:
        """Whether its schedule has moved since the optimizer stepped last; to be asked once a step."""
        moved = bool(self._found) and self._any_advanced(optimizer)
        rates: list[float] = []
        for group in optimizer.param_groups:
            # A rate that is a tensor is not compared: on a device that would be a sync.
            if isinstance(rate := group.get("lr"), float):
                rates.append(rate)  # noqa: PERF401 - a comprehension is a call
        before = self._rates.get(id(optimizer))
        self._rates[id(optimizer)] = rates
        if moved or rates == before:
            return moved
        if before is None:
            self._search(optimizer)
            self._any_advanced(optimizer)  # counts from here on
            return False
        return self._is_moved_by_new(optimizer)

    def seen(self, optimizer: Optimizer) -> tuple[tuple[Any, ...], tuple[tuple[Any, Any], ...]]:
        """Return what is the same while its schedule does not move, by identity.

        Returns:
            The learning rate of each group, and of each scheduler that is known a weak reference and its count.
        """
        rates = tuple(group.get("lr") for group in optimizer.param_groups)
        counted = tuple(s for s in self._of(optimizer) if hasattr(s, "last_epoch"))
        return rates, tuple((weakref.ref(s), s.last_epoch) for s in counted)

    def _search(self, optimizer: Optimizer) -> None:
        owner = weakref.ref(optimizer)
        self._found = [
            (scheduler, of)
            for scheduler, of in self._found
            if of() is not None and of() is not optimizer
        ]
        self._found += [
            (weakref.ref(scheduler), owner)
            for scheduler in referring_to(optimizer, LRScheduler)
            if getattr(scheduler, "optimizer", None) is optimizer
        ]

    def _is_moved_by_new(self, optimizer: Optimizer) -> bool:
        """Whether a scheduler that was not known has moved a rate."""
        if self._searches >= MAX_SEARCHES:
            return False
        self._searches += 1
        known = self._of(optimizer)
        self._search(optimizer)
        new = [s for s in self._of(optimizer) if not any(s is k for k in known)]
        self._any_advanced(optimizer)
        # One that was only made sets the rate as well, and has made no step.
        return any(getattr(s, "last_epoch", 0) > 0 for s in new)

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
