"""Parameters and buffers as they are at the end of an iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.model.flat import parts_of
from ampwatch.training.model.names import module_of
from ampwatch.training.transfer.measuring import How, Item
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from ampwatch.training.hooks.events import IterationClosing
    from ampwatch.training.iteration.context import Context

MAX_ELEMENTS = 65536
"""Elements of one tensor that are binned on a CPU; amax and non-finite elements are found among all
of them."""

STATE = How(most=MAX_ELEMENTS)


class WeightSensor(Sensor):
    """Measures trained parameters and floating-point buffers in iterations that sample state.

    Measures also at the end of an iteration in which something was not finite: a forward whose step
    is then skipped poisons the running statistics of a BatchNorm.

    Args:
        context: Shared parts of the training.
    """

    name = "weights"

    def __init__(self, context: Context) -> None:
        self._names = context.names
        self._governor = context.governor
        self._measuring = context.measuring

    def iteration_closing(self, event: IterationClosing) -> None:
        """Measure state where it is planned, and at once where something is not finite."""
        governor = self._governor
        if event.has_nonfinite and governor.observes_skips and governor.takes_first_check():
            self._measure(0, 1)
        elif Topic.WEIGHT in governor.wanted:
            self._measure(*governor.part)

    def _measure(self, part: int, parts: int) -> None:
        """Measure one of ``parts`` parts of the trained parameters, and the buffers."""
        # A frozen parameter cannot be broken by a step, and may be a mask of infinities.
        trained = [(name, p) for name, p in self._names.parameters() if p.requires_grad]
        parameters = trained[part::parts]
        self._measuring.measure(Topic.WEIGHT, list(_items(parameters)), STATE)
        buffers = [(name, b) for name, b in self._names.buffers() if b.is_floating_point()]
        self._measuring.measure(Topic.BUFFER, list(_items(buffers)), STATE)


def _items(named: list[tuple[str, Tensor]]) -> Iterator[Item]:
    for name, tensor in named:
        for part, values in parts_of(name, tensor, tensor):
            yield Item(part, module_of(part), values)
