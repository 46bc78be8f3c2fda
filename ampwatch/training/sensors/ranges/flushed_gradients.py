"""Unscaled gradients that a program takes through float16 before the optimizer gets them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ampwatch.diagnosis.evidence.rounding import FlushedGradients
from ampwatch.numerics.formats import FORMATS
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.kernels.admission import is_plain
from ampwatch.training.model.scaler import READY, stage_of
from ampwatch.training.ops.operands import thinned
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from ampwatch.training.hooks.events import IterationPlanned, StepBegan, Unscaled
    from ampwatch.training.iteration.context import Context

MAX_GRADIENTS = 64
"""Gradients of an optimizer that are compared; of more every k-th is."""

SAMPLED = 1024
"""Elements of a gradient that are compared."""

FLUSH_AT = FORMATS["float16"].flush_at


class _Sample(NamedTuple):
    """Some elements of the gradients of an optimizer."""

    names: list[str]  # names of the parameters
    sizes: list[int]  # number of elements of each
    values: Tensor  # the elements, joined, in float32


class FlushedGradientSensor(Sensor):
    """Compares the gradients that ``unscale_`` has left with those that the optimizer gets.

    A program may exchange, store or project gradients in between. Unscaled they are often smaller than float16 holds:
    those and no others are zero afterwards. A mask, a clip or a gradient that is set to zero asks for no magnitude.

    Cost:
        Nothing but in iterations that sample gradients, in programs that call ``unscale_``: a copy of up to
        ``MAX_GRADIENTS`` times ``SAMPLED`` elements, some 10 us a gradient on a CPU, and one transfer.
    """

    name = "flushed_gradients"
    waking = frozenset({"iteration_planned"})

    def __init__(self, context: Context) -> None:
        self._scaler = context.some_scaler
        self._registry = context.registry
        self._names = context.names
        self._iteration = context.iteration
        self._governor = context.governor
        self._deferred = context.deferred
        self._observe = context.observe
        self._before: dict[int, _Sample] = {}

    def iteration_planned(self, _event: IterationPlanned) -> None:
        """Compare gradients in the iteration, or not."""
        self._before.clear()
        self.is_dormant = Topic.GRADIENT not in self._governor.wanted

    def removed(self) -> None:
        """Forget the gradients."""
        self._before.clear()

    def unscaled(self, event: Unscaled) -> None:
        """Keep some elements of the gradients."""
        if event.scaler is self._scaler:
            index = self._registry.admit(event.optimizer)
            sample = self._sample(event.optimizer, index)
            if sample is not None:
                self._before[index] = sample

    @torch.no_grad()
    def step_began(self, event: StepBegan) -> None:
        """Look which of them are zero now."""
        index = self._registry.index_of(event.optimizer)
        before = None if index is None else self._before.pop(index, None)
        if index is None or before is None or stage_of(event.scaler, event.optimizer) == READY:
            return
        after = self._sample(event.optimizer, index)
        if after is None or (after.names, after.sizes) != (before.names, before.sizes):
            return
        if after.values.device != before.values.device:
            return
        has_value = before.values != 0
        is_tiny = before.values.abs() <= FLUSH_AT
        is_lost = has_value & (after.values == 0)
        parts = torch.split(is_lost, before.sizes)
        shares = torch.stack([part.float().mean() for part in parts])
        columns = (
            has_value.sum(),
            is_lost.sum(),
            (is_lost & ~is_tiny).sum(),
            (has_value & is_tiny & ~is_lost).sum(),
            shares.argmax(),
            shares.amax(),
        )
        step, names = self._iteration.step, before.names

        def judge(read: list[float]) -> None:
            compared, lost, above, kept, worst, share = read
            if lost:
                counts = int(compared), int(lost), int(above), int(kept)
                self._observe(FlushedGradients(step, names[int(worst)], share, *counts))

        self._deferred.read(torch.stack([c.float() for c in columns]), judge)

    @torch.no_grad()
    def _sample(self, optimizer: Optimizer, index: int) -> _Sample | None:
        names: list[str] = []
        samples: list[Tensor] = []
        named = [(n, p) for n, p in self._names.of_optimizer(optimizer, index) if is_plain(p.grad)]
        for name, parameter in named[:: -(-len(named) // MAX_GRADIENTS) or 1]:
            gradient = parameter.grad
            if gradient is None or gradient.dtype is not torch.float32:
                continue
            # What is compared lies on one device. Of a model on several the first one tells as much.
            if not samples or gradient.device == samples[0].device:
                names.append(name)
                samples.append(thinned(gradient, SAMPLED))
        if not samples:
            return None
        return _Sample(names, [sample.numel() for sample in samples], torch.cat(samples))
