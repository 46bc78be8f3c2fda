"""Inputs of the watched models: whether they are finite."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ampwatch.diagnosis.evidence.origins import BadInput
from ampwatch.training.hooks.events import RootCalled
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.hooks.sources import user_source
from ampwatch.training.kernels.admission import has_values, local_part
from ampwatch.training.kernels.dtypes import FLOATS
from ampwatch.training.model.tensors import tensors_in

if TYPE_CHECKING:
    from ampwatch.training.hooks.events import IterationPlanned
    from ampwatch.training.iteration.context import Context


class InputSensor(Sensor):
    """Checks the inputs of the watched models, in the iterations that are planned.

    A bad batch is gone when the next iteration is traced op by op: this is the one check of values
    that has to come before anything is known to be wrong. Negative infinity alone is a mask.

    Cost:
        One pass over the inputs, no sync.
    """

    name = "inputs"
    is_thread_safe = True

    def __init__(self, context: Context) -> None:
        self._bus = context.bus
        self._iteration = context.iteration
        self._governor = context.governor
        self._deferred = context.deferred
        self._observe = context.observe
        # At deep every op is followed, and with the ops their inputs.
        self._is_needed = context.settings.level != "deep"
        self._step = 0

    def installed(self) -> None:
        """Begin with the open iteration."""
        self._begin(self._iteration.step, wanted=self._governor.is_opening)

    def removed(self) -> None:
        """Listen no more."""
        self._begin(self._step, wanted=False)

    def iteration_planned(self, event: IterationPlanned) -> None:
        """Begin to observe calls of the models, or end it."""
        self._begin(event.step, wanted=self._governor.is_opening or event.attention.inputs)

    def _begin(self, step: int, *, wanted: bool) -> None:
        self._step = step
        change = self._bus.listen if wanted and self._is_needed else self._bus.ignore
        change(self, RootCalled)

    def root_called(self, event: RootCalled) -> None:
        """Check the inputs of a watched model."""
        given = tensors_in((event.args, event.kwargs))
        # A tensor with a node was computed by a model, maybe by another one that is watched.
        leaves = [t for t in given if t.dtype in FLOATS and t.is_leaf]
        tensors = [part for t in leaves if (part := local_part(t)) is not None and has_values(part)]
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
