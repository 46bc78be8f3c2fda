"""Collectives that are under way: what they write is not read until it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ampwatch.training.devices import is_capturing
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.kernels.pending import PENDING

if TYPE_CHECKING:
    from ampwatch.training.hooks.events import CollectiveBegan, CollectiveWaited, IterationOpened
    from ampwatch.training.iteration.context import Context


class CollectiveSensor(Sensor):
    """Takes note of the results that a process group has yet to write.

    All readers of tensors ask for them: see ``kernels.admission.is_pending``.

    Cost: some 3 us for each collective that Python begins.
    """

    name = "collectives"
    is_thread_safe = True
    batched = frozenset({"iteration_opened"})
    _num_listening: ClassVar[int] = 0

    def __init__(self, _context: Context) -> None:
        self._is_listening = False

    def installed(self) -> None:
        """Begin."""
        self._count(1)

    def removed(self) -> None:
        """Forget what is under way when no monitor listens any more: its end would go unseen."""
        self._count(-1)

    def failed(self) -> None:
        """Forget what is under way, likewise."""
        self._count(-1)

    def _count(self, change: int) -> None:
        if self._is_listening != (change > 0):
            self._is_listening = change > 0
            CollectiveSensor._num_listening += change
        if not CollectiveSensor._num_listening:
            PENDING.clear()

    def collective_began(self, event: CollectiveBegan) -> None:
        """Have nobody read the results until somebody has waited for them."""
        # While a CUDA graph is captured, asking for an event would break the capture.
        if not is_capturing():
            PENDING.let_go_of_oldest()
        PENDING.begin(event.work, event.targets)

    def collective_waited(self, event: CollectiveWaited) -> None:
        """Have the results read again."""
        PENDING.end(event.work)

    def iteration_opened(self, _event: IterationOpened) -> None:
        """Hold no handle of a collective that is over."""
        if PENDING and not is_capturing():
            PENDING.let_go()
