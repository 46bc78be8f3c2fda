"""Parameters and buffers as they are at the end of an iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.training.model.names import module_of
from ampwatch.training.transfer.measuring import How, Item
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from ampwatch.guard import Guard
    from ampwatch.training.iteration.governor import Sampler
    from ampwatch.training.model.names import Names
    from ampwatch.training.transfer.measuring import Measuring

MAX_ELEMENTS = 65536
"""Elements of one tensor that are binned on a CPU; its amax and its non-finite elements are
those of all of it."""

STATE = How(most=MAX_ELEMENTS)


class WeightSensor:
    """Measures trained parameters and floating-point buffers in iterations that sample state.

    Also at the end of an iteration in which something was not finite: that is how the running
    statistics of a BatchNorm are poisoned, by a forward whose step is then skipped.

    Args:
        names: Names of parameters and buffers.
        sampler: Says which iterations are sampled.
        measuring: Measures.
        guard: The fail-open boundary.
    """

    name = "weights"

    def __init__(self, names: Names, sampler: Sampler, measuring: Measuring, guard: Guard) -> None:
        self._names = names
        self._sampler = sampler
        self._measuring = measuring
        self._guard = guard

    def install(self) -> None:
        """Nothing to place: the end of an iteration is told by the ledger."""

    def remove(self) -> None:
        """Nothing to take off."""

    def closing(self, *, nonfinite: bool) -> None:
        """The iteration is about to be closed.

        Args:
            nonfinite: A gradient or the loss is known not to be finite.
        """
        sampler = self._sampler
        if nonfinite and sampler.looks_at_skips and sampler.takes_first_look():
            self._guard.run(self.look, 0, 1)
        elif Topic.WEIGHT in sampler.wanted:
            self._guard.run(self.look, *sampler.part)

    def look(self, part: int, parts: int) -> None:
        """Measure one of ``parts`` parts of the trained parameters, and the buffers."""
        # What is frozen cannot be broken by a step, and may be a mask.
        trained = [(name, p) for name, p in self._names.parameters() if p.requires_grad]
        parameters = trained[part::parts]
        self._measuring.measure(Topic.WEIGHT, list(_items(parameters)), STATE)
        buffers = [(name, b) for name, b in self._names.buffers() if b.is_floating_point()]
        self._measuring.measure(Topic.BUFFER, list(_items(buffers)), STATE)


def _items(named: list[tuple[str, Tensor]]) -> Iterator[Item]:
    for name, tensor in named:
        yield Item(name, module_of(name), tensor)
