"""Inputs of the watched models: whether they are finite."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING

import torch

from ampwatch.diagnosis.evidence.origins import BadInput
from ampwatch.training.hooks.events import ForwardBegan
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.hooks.sources import user_source
from ampwatch.training.kernels.admission import has_values, local_part
from ampwatch.training.kernels.dtypes import FLOATS
from ampwatch.training.model.tensors import tensors_in

if TYPE_CHECKING:
    from torch import nn

    from ampwatch.training.hooks.events import CompiledEntering, IterationPlanned
    from ampwatch.training.iteration.context import Context


class InputSensor(Sensor):
    """Checks the positional inputs of the watched models, in the iterations that are planned.

    A bad batch is gone when the next iteration is traced op by op: this is the one check of values
    that has to come before anything is known to be wrong. Negative infinity alone is a mask.

    Cost:
        One pass over the inputs, no sync; 0.5 us a call of any module while it is on.
    """

    name = "inputs"
    is_thread_safe = True

    def __init__(self, context: Context) -> None:
        self._bus = context.bus
        self._iteration = context.iteration
        self._names = context.names
        self._governor = context.governor
        self._deferred = context.deferred
        self._observe = context.observe
        # At deep every op is followed, and with the ops their inputs.
        self._is_needed = context.settings.level != "deep"
        self._step = 0
        self._models: dict[int, weakref.ref[nn.Module]] = {}

    def installed(self) -> None:
        """Begin with the open iteration."""
        self._begin(self._iteration.step, wanted=self._governor.is_opening)

    def removed(self) -> None:
        """Forget the models."""
        self._end()

    def iteration_planned(self, event: IterationPlanned) -> None:
        """Begin to observe calls of the models, or end it."""
        self._begin(event.step, wanted=self._governor.is_opening or event.attention.inputs)

    def _begin(self, step: int, *, wanted: bool) -> None:
        self._step = step
        if not (wanted and self._is_needed) or self._bus.runs_compiled:
            self._end()
        elif not self._models:
            self._models = {id(model): weakref.ref(model) for model in self._names.models()}
            self._bus.listen(self, ForwardBegan)

    def _end(self) -> None:
        if self._models:
            self._models.clear()
            self._bus.ignore(self, ForwardBegan)

    def compiled_entering(self, _event: CompiledEntering) -> None:
        """Have the hook taken out: PyTorch warns if one is there when compiled code runs."""
        self._end()

    def forward_began(self, event: ForwardBegan) -> None:
        """Check the inputs of a watched model."""
        known = self._models.get(id(event.module))
        if known is None or known() is not event.module:
            return
        args = event.args
        # A tensor with a node was computed by a model, maybe by another one that is watched.
        given = [t for t in tensors_in(args) if t.dtype in FLOATS and t.is_leaf]
        tensors = [part for t in given if (part := local_part(t)) is not None and has_values(part)]
        if not tensors or not torch.is_grad_enabled():
            return
        step = self._step
        source = user_source()
        numel = sum(t.numel() for t in tensors)

        def judge(read: list[float]) -> None:
            (value,) = read
            if not value < math.inf:
                self._observe(BadInput(step, math.isnan(value), numel, source))

        for device in {t.device: None for t in tensors}:
            with torch.no_grad():
                # A tensor without NaN and positive infinity has a finite maximum, or one of -inf.
                each = [t.detach().amax().float() for t in tensors if t.device == device]
                largest = torch.stack(each).amax()
            self._deferred.read(largest.reshape(1), judge)
