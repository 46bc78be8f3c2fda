"""Gradients of parameters, as they stand before they are unscaled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.model.names import module_of
from ampwatch.training.model.scaler import READY, stage_of
from ampwatch.training.model.tensors import parts_of
from ampwatch.training.private import DECIDES_ON_DEVICE, states_of_optimizers
from ampwatch.training.transfer.measuring import Item
from ampwatch.training.transfer.readback import host_scalar
from ampwatch.training.transfer.slabs import How
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import torch
    from torch import Tensor
    from torch.optim import Optimizer

    from ampwatch.training.hooks import events as on
    from ampwatch.training.iteration.context import Context

SCALED = How(scaled=True, with_norms=True)
UNSCALED = How(with_norms=True)


class _Handled(Struct):
    """Optimizers that were handled in the open iteration, by identity."""

    step: int = -1  # index of the iteration
    # optimizers whose gradients are known not to be finite
    skipped: set[int] = field(default_factory=set)
    # devices on which gradients were measured; ``None`` stands for all
    measured: dict[int, set[torch.device | None]] = field(default_factory=dict)
    backwards: int = 0  # backward passes so far
    usual: int = 0  # backward passes of the iteration before


class _Gradients(Sensor):
    """Measures the gradients of an optimizer, once per iteration and device."""

    name = "gradients"

    def __init__(self, context: Context) -> None:
        self._registry = context.registry
        self._names = context.names
        self._governor = context.governor
        self._measuring = context.measuring
        self._last = _Handled()

    def removed(self) -> None:
        """Forget the open iteration."""
        self._last = _Handled()

    @property
    def _open(self) -> _Handled:
        if self._last.step != self._governor.step:
            self._last = _Handled(self._governor.step, usual=self._last.backwards)
        return self._last

    def _measure(self, optimizer: Optimizer, how: How) -> None:
        # Steps may be nested, and would measure twice. The scaler has a verdict per device, which
        # is the gate of the gradients there: those of another device are measured behind theirs.
        devices = self._open.measured.setdefault(id(optimizer), set())
        device = None if how.gate is None else how.gate.device
        if devices.isdisjoint({None, device}):
            devices.add(device)
            self._measuring.measure(Topic.GRADIENT, list(self._gradients(optimizer)), how)

    def _gradients(self, optimizer: Optimizer) -> Iterator[Item]:
        index = self._registry.admit(optimizer)
        return _items(self._names.of_optimizer(optimizer, index))


class ScaledGradientSensor(_Gradients):
    """Measures ``.grad`` of the parameters of each optimizer that steps through the scaler.

    Measures in sampled iterations, once per optimizer, before ``unscale_``, or before the ``step``
    of an optimizer that unscales by itself: the values are multiplied by the loss scale. Measures
    also in any iteration in which the scaler has found a non-finite gradient, after ``unscale_``
    or after the step, unless the verdict is on a device and no step was skipped lately.
    """

    batched = frozenset({"step_began", "step_ended"})

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._iteration = context.iteration
        # By optimizer, the iteration in which the user has unscaled its gradients.
        self._unscaled: dict[int, int] = {}

    def unscaling(self, event: on.Unscaling) -> None:
        """Measure the gradients that the user is about to have unscaled."""
        if Topic.GRADIENT in self._governor.wanted:
            self._measure_scaled(event.scaler, event.optimizer)

    def unscaled(self, event: on.Unscaled) -> None:
        """Measure gradients that the scaler objects to, before the user may change them.

        Clipping by a norm that is NaN makes every element NaN.
        """
        self._unscaled[id(event.optimizer)] = self._iteration.step
        self._observe_skips(event.scaler, event.optimizer)

    def step_began(self, event: on.StepBegan) -> None:
        """Measure the gradients that the scaler, or the optimizer itself, is about to unscale."""
        scaler, optimizer = event
        if Topic.GRADIENT in self._governor.wanted:
            self._measure_scaled(scaler, optimizer)

    def step_ended(self, event: on.StepEnded) -> None:
        """Measure gradients that the scaler objects to, while they are there."""
        self._observe_skips(event.scaler, event.optimizer)

    def _measure_scaled(self, scaler: torch.amp.GradScaler, optimizer: Optimizer) -> None:
        if scaler.is_enabled() and stage_of(scaler, optimizer) == READY:
            self._measure(optimizer, SCALED)

    def _observe_skips(self, scaler: torch.amp.GradScaler, optimizer: Optimizer) -> None:
        state = states_of_optimizers(scaler).get(id(optimizer))
        if state is None or not self._governor.observes_skips:
            return
        for found_inf in state["found_inf_per_device"].values():
            # Reading a verdict on a device would be a sync: the kernel reads it, as its gate.
            if found_inf.device.type != "cpu":
                if self._governor.is_alert:
                    self._measure(optimizer, How(self._stays_scaled(optimizer), gate=found_inf))
            elif host_scalar(found_inf):
                self._iteration.take_over()
                if id(optimizer) in self._open.skipped:
                    continue
                self._open.skipped.add(id(optimizer))
                # Reading the verdict was free, measuring is not: the governor limits a streak.
                if self._governor.takes_skip():
                    self._measure(optimizer, How(self._stays_scaled(optimizer)))

    def _stays_scaled(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer unscales gradients in its own step, so not on a skip."""
        is_fused = bool(getattr(optimizer, DECIDES_ON_DEVICE, False))
        return is_fused and self._unscaled.get(id(optimizer)) != self._iteration.step


class DirectGradientSensor(_Gradients):
    """Measures ``.grad`` of the parameters where no scaler of torch's is watched, in sampled iterations.

    Where no scale is known, before each optimizer's own step. An optimizer that calls a closure
    (LBFGS) has the gradients of the previous step there. With a scale that is not torch's at the
    end of a backward, multiplied by it, once an iteration, and also while steps are being skipped:
    a framework unscales when and where it likes. With accumulation that is the last backward, if
    there are as many as in the iteration before; what comes after the measurement leaves it
    incomplete. What a framework has moved elsewhere by then, as ZeRO 1 to 3 do, is not measured.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._bus = context.bus

    @property
    def _knows_scale(self) -> bool:
        scaler = self._bus.loss_scaler
        return self._bus.infers_scale or (scaler is not None and scaler.get_scale is not None)

    def optimizer_stepping(self, event: on.OptimizerStepping) -> None:
        """Measure the gradients that an optimizer is about to step with."""
        is_wanted = Topic.GRADIENT in self._governor.wanted and not self._knows_scale
        if is_wanted and self._registry.index_of(event.optimizer) is not None:
            self._measure(event.optimizer, UNSCALED)

    def backward_began(self, event: on.BackwardBegan) -> Callable[[], None] | None:
        """Measure once backward has ended."""
        if not event.is_alone or not self._knows_scale:
            return None
        handled = self._open
        handled.backwards += 1
        if handled.measured:
            self._measuring.open.incomplete.add(Topic.GRADIENT)
            return None
        if handled.backwards < handled.usual:
            return None
        governor = self._governor
        is_alert = governor.observes_skips and governor.is_alert and not governor.is_opening
        if Topic.GRADIENT in governor.wanted or (is_alert and governor.takes_skip()):
            return self._measure_all
        return None

    def _measure_all(self) -> None:
        self._open.measured[0] = {None}
        if items := list(_items(self._names.parameters())):
            self._measuring.measure(Topic.GRADIENT, items, SCALED)


def _items(parameters: Iterable[tuple[str, Tensor]]) -> Iterator[Item]:
    """Yield the gradients of parameters, of a flat one those of the parameters in it."""
    for name, parameter in parameters:
        if parameter.grad is not None:
            for part, gradient in parts_of(name, parameter, parameter.grad):
                yield Item(part, module_of(part), gradient)
