"""Succession of GradScalers: a training may go on with another scaler, or with a loaded state."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from ampwatch.diagnosis.evidence.scaler import ScalerChange
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.model.names import parameters_of
from ampwatch.training.private import initial_tracker, scale_tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch.optim import Optimizer

    from ampwatch.training.hooks import events as on
    from ampwatch.training.iteration.context import Context


class ScalerSuccession(Sensor):
    """Follows the training to a scaler that takes over from the watched one.

    A scaler takes over when it steps an optimizer that the watched one has stepped, or another
    one of the same parameters; where none is watched, or the watched one has stepped nothing, when it
    steps an optimizer of this training. If the older one then steps again, both are in use, each with
    a purpose, and it is the older one that is watched from there on.

    Args:
        context: Shared parts of the training.
        taken_over: Called when another scaler is watched, in the iteration that this one is going to end.
    """

    name = "succession"
    any_scaler = True
    rests = True

    def __init__(self, context: Context, taken_over: Callable[[], None]) -> None:
        self._first = scaler = context.scaler
        self._taken_over = taken_over
        self._registry = context.registry
        self._bus = context.bus
        self._iteration = context.iteration
        self._observe = context.observe
        self._is_settled = False
        self._is_untouched = scaler is not None and scaler.is_enabled() and _is_new(scaler)
        # By identity: a set compares, and tensors compare by element.
        self._parameters: dict[int, weakref.ref[torch.Tensor]] = {}
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._restored: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._loaded: weakref.WeakSet[torch.amp.GradScaler] = weakref.WeakSet()
        self._strangers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._newest: weakref.ref[Optimizer] | None = None

    def removed(self) -> None:
        """Forget the parameters."""
        self._parameters.clear()

    def scaler_loaded(self, event: on.ScalerLoaded) -> None:
        """Take note that a state was loaded into a scaler."""
        self._loaded.add(event.scaler)
        if event.scaler is self._bus.scaler:
            self._observe(ScalerChange(self._iteration.step, loaded=True, resumed=True))

    def optimizer_loaded(self, event: on.OptimizerLoaded) -> None:
        """Take note that a state was loaded into an optimizer."""
        self._restored.add(event.optimizer)

    def step_began(self, event: on.StepBegan) -> None:
        """Check whether the scaler that steps is the watched one, or a successor."""
        scaler, optimizer = event
        if scaler is self._bus.scaler:
            # Nearly always the same scaler steps the same optimizer once more.
            is_known = self._newest is not None and self._newest() is optimizer
            if not is_known and optimizer not in self._optimizers:
                self._meet(optimizer)
        elif not self._is_settled and scaler.is_enabled():
            if scaler is self._first:
                # The older scaler goes on: the other one is no successor.
                self._is_settled = True
                self._follow(scaler)
            elif optimizer not in self._strangers and self._is_ours(optimizer):
                if self._first is None:
                    self._first = scaler
                if self._optimizers:
                    known, restored = optimizer in self._optimizers, optimizer in self._restored
                    loaded = scaler in self._loaded
                    change = ScalerChange(
                        self._iteration.step,
                        loaded=loaded,
                        resumed=known or restored or _has_state(optimizer),
                        made_anew=known and not (restored or loaded),
                    )
                    self._observe(change)
                self._meet(optimizer)
                self._follow(scaler)

    def _follow(self, scaler: torch.amp.GradScaler) -> None:
        self._bus.follow(scaler)
        self._taken_over()

    def _meet(self, optimizer: Optimizer) -> None:
        if self._is_untouched and not self._optimizers and _has_state(optimizer):
            change = ScalerChange(
                self._iteration.step, loaded=False, resumed=True, known_before=False
            )
            self._observe(change)
        self._is_untouched = False
        self._restored.discard(optimizer)
        self._optimizers.add(optimizer)
        self._newest = weakref.ref(optimizer)
        self._refer_to_parameters(optimizer)

    def _refer_to_parameters(self, optimizer: Optimizer) -> None:
        self._parameters.update({id(p): weakref.ref(p) for p in parameters_of(optimizer)})

    def tensors_swapping(self, _event: on.TensorsSwapping) -> None:
        """Drop all weak references to parameters: PyTorch refuses to swap a tensor that has one.

        They are made anew from the optimizers when they are needed.
        """
        self._parameters.clear()

    def _is_ours(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer is of this training, or holds parameters of one that is."""
        if optimizer in self._optimizers:
            return True
        if not self._optimizers:
            return self._registry.index_of(optimizer) is not None
        if not self._parameters:
            for met in self._optimizers:
                self._refer_to_parameters(met)
        ours = any(
            (known := self._parameters.get(id(p))) is not None and known() is p
            for group in optimizer.param_groups
            for p in group["params"]
        )
        if not ours:
            self._strangers.add(optimizer)
        return ours


def _has_state(optimizer: Optimizer) -> bool:
    # What a scaler steps need be no Optimizer of torch's: fastai hands in a callback.
    return bool(getattr(optimizer, "state", None))


def _is_new(scaler: torch.amp.GradScaler) -> bool:
    """Whether a scaler has neither been used nor been given a state."""
    # The tensor of the scale is made by the first call of ``scale``.
    untouched = scale_tensor(scaler) is None
    return untouched and not initial_tracker(scaler)
