"""Parameters and buffers as they are at the end of an iteration, and before the first."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

import torch

from ampwatch.diagnosis.evidence.state import BrokenWeights, SoundBuffers
from ampwatch.training.hooks.events import RootCalled
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.kernels.dtypes import FLOATS
from ampwatch.training.model.dtypes import name_of
from ampwatch.training.model.flat import parts_of
from ampwatch.training.model.names import module_of
from ampwatch.training.ops.values import is_plain
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
    is then skipped poisons the running statistics of a BatchNorm. And looks once, before a model is called
    for the first time, for parameters that are NaN by then: no op of this training has made them.

    Args:
        context: Shared parts of the training.
    """

    name = "weights"

    def __init__(self, context: Context) -> None:
        self._names = context.names
        self._governor = context.governor
        self._measuring = context.measuring
        self._observe = context.observe
        self._deferred = context.deferred
        self._iteration = context.iteration
        self._bus = context.bus
        self._is_first = True

    def installed(self) -> None:
        """Tell which buffers are sound: what is not finite by then is meant to be so.

        Cost: a pass over the buffers, without a copy; one wait for each device, before the first step.
        """
        largest: dict[torch.device, dict[str, Tensor]] = defaultdict(dict)
        for name, buffer in self._buffers():
            for part, values in parts_of(name, buffer, buffer):
                if is_plain(values) and values.dtype in FLOATS:
                    largest[values.device][part] = _largest(values)
        for by_name in largest.values():
            numbers = torch.stack(list(by_name.values())).tolist()
            sound = [name for name, one in zip(by_name, numbers, strict=True) if math.isfinite(one)]
            self._observe(SoundBuffers(frozenset(sound)))
        self._bus.listen(self, RootCalled)

    def root_called(self, _event: RootCalled) -> None:
        """Look for parameters that are NaN already.

        Cost: the first time a pass over the parameters, without a copy and without a wait.
        """
        if not self._is_first:
            return
        self._is_first = False
        largest: dict[torch.device, dict[str, Tensor]] = defaultdict(dict)
        dtypes: dict[str, str] = {}
        for name, parameter in self._names.parameters():
            for part, values in parts_of(name, parameter, parameter):
                if is_plain(values) and values.dtype in FLOATS:
                    largest[values.device][part] = _largest(values)
                    dtypes[part] = name_of(values.dtype)
        for by_name in largest.values():
            judge = partial(self._judge, self._iteration.step, list(by_name), dtypes)
            # Infinities may be meant to be there.
            are_nan = torch.stack(list(by_name.values())).isnan()
            self._deferred.read(torch.stack([are_nan.sum(), are_nan.long().argmax()]), judge)

    def _judge(
        self, step: int, names: list[str], dtypes: dict[str, str], read: list[float]
    ) -> None:
        first = names[int(read[1])]
        if read[0]:
            self._observe(BrokenWeights(step, first, dtypes[first], int(read[0])))

    def iteration_closing(self, event: IterationClosing) -> None:
        """Measure state where it is planned, and at once where something is not finite."""
        self._bus.ignore(self, RootCalled)
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
        self._measuring.measure(Topic.BUFFER, list(_items(self._buffers())), STATE)

    def _buffers(self) -> list[tuple[str, Tensor]]:
        return [(name, b) for name, b in self._names.buffers() if b.is_floating_point()]


@torch.no_grad()
def _largest(values: Tensor) -> Tensor:
    # A norm needs no tensor as large as a cache may be, as ``isfinite`` does.
    norm: Tensor = torch.linalg.vector_norm(values, math.inf)
    return norm.float()


def _items(named: list[tuple[str, Tensor]]) -> Iterator[Item]:
    for name, tensor in named:
        for part, values in parts_of(name, tensor, tensor):
            yield Item(part, module_of(part), values)
