"""The gradients of parameters, as they stand before they are unscaled."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ampwatch.training.hooks.taps import Listener, listen
from ampwatch.training.model.names import module_of
from ampwatch.training.transfer.measuring import WHOLE, How, Item
from ampwatch.training.transfer.readback import host_scalar
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from ampwatch.guard import Guard
    from ampwatch.training.iteration.governor import Sampler
    from ampwatch.training.model.names import Names
    from ampwatch.training.model.optimizers import OptimizerRegistry
    from ampwatch.training.transfer.measuring import Measuring

SCALED = How(scaled=True)


class _Stepping(NamedTuple):
    """An optimizer that steps through the scaler in the open iteration.

    Attributes:
        optimizer: The optimizer.
        stays_scaled: Its gradients are unscaled by its own step only, so not on a skip.
    """

    optimizer: weakref.ref[Optimizer]
    stays_scaled: bool


@dataclass(slots=True)
class _Open:
    """What has happened in the open iteration, by identity of the optimizer.

    Attributes:
        step: Index of the iteration.
        stepping: Those that step through the scaler.
        skipped: Those whose gradients are known not to be finite.
        measured: On which devices their gradients were; ``None`` stands for all.
    """

    step: int = -1
    stepping: dict[int, _Stepping] = field(default_factory=dict)
    skipped: set[int] = field(default_factory=set)
    measured: dict[int, set[torch.device | None]] = field(default_factory=dict)


class GradientSensor:
    """Measures ``.grad`` of the parameters of each optimizer.

    With an enabled scaler in sampled iterations: once per optimizer, before ``unscale_``, or
    before the ``step`` of an optimizer that unscales by itself, so the values are multiplied by
    the loss scale. Also in any iteration in which the scaler has found a non-finite gradient,
    after ``unscale_`` or before ``update``, unless the verdict is on a device and no step was
    skipped lately. Without a scaler at the optimizer's own pre-step hook; an optimizer that calls a closure
    (LBFGS) has the gradients of its previous step there.

    Args:
        scaler: The watched scaler or ``None``.
        registry: Knows which optimizers belong here.
        names: Names of the parameters.
        sampler: Says which iterations are sampled.
        measuring: Measures.
        guard: The fail-open boundary.
    """

    name = "gradients"

    def __init__(
        self,
        scaler: torch.amp.GradScaler | None,
        registry: OptimizerRegistry,
        names: Names,
        sampler: Sampler,
        measuring: Measuring,
        guard: Guard,
    ) -> None:
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._registry = registry
        self._names = names
        self._sampler = sampler
        self._measuring = measuring
        self._guard = guard
        self._last = _Open()
        self._listeners: list[Listener] = []
        self._handle: RemovableHandle | None = None

    def install(self) -> None:
        """Listen to the scaler, or without one to the steps of optimizers."""
        if self._scaler is None:
            self._handle = register_optimizer_step_pre_hook(self._before_direct_step)
            return
        for name, before, after in (
            ("unscale_", self.before_unscale, self.look_at_skips),
            ("step", self.before_unscale, None),
            ("update", self.look_at_skips, None),
        ):
            self._listeners.append(
                listen(
                    type(self._scaler),
                    name,
                    instance=self._scaler,
                    before=self._guarded(before),
                    after=None if after is None else self._guarded(after),
                )
            )

    def follow(self, scaler: torch.amp.GradScaler) -> None:
        """Listen to another scaler from now on: it has taken over."""
        if self._listeners:
            self.remove()
            self._scaler = scaler
            self.install()

    def _guarded(self, work: Callable[..., None]) -> Callable[..., None]:
        return lambda _scaler, args, kwargs: self._guard.run(work, args, kwargs)

    def remove(self) -> None:
        """Stop listening."""
        for listener in self._listeners:
            listener.remove()
        self._listeners.clear()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        self._last = _Open()

    @property
    def _open(self) -> _Open:
        if self._last.step != self._sampler.step:
            self._last = _Open(self._sampler.step)
        return self._last

    def before_unscale(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """``unscale_`` or ``step`` of an optimizer begins."""
        optimizer = args[0] if args else kwargs["optimizer"]
        ready = self._is_ready(optimizer)
        fused = getattr(optimizer, "_step_supports_amp_scaling", False)
        self._open.stepping[id(optimizer)] = _Stepping(weakref.ref(optimizer), ready and fused)
        if ready and Topic.GRADIENT in self._sampler.wanted:
            self._measure(optimizer, SCALED)

    def _is_ready(self, optimizer: Optimizer) -> bool:
        if self._scaler is None:
            return False
        states = self._scaler._per_optimizer_states  # noqa: SLF001 - no public name for it
        # Looking must not create the entry of an optimizer that has none yet.
        return id(optimizer) not in states or states[id(optimizer)]["stage"].name == "READY"

    def look_at_skips(self, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        """Verdicts are known; look at once at what the scaler objects to.

        After ``unscale_``, before the user may clip by a norm that is NaN, which leaves nothing
        else; and before ``update``, for optimizers that unscale by themselves.
        """
        if self._scaler is None or not self._sampler.looks_at_skips:
            return
        states = self._scaler._per_optimizer_states  # noqa: SLF001 - no public name for it
        for key, stepping in self._open.stepping.items():
            if key in states:
                for found_inf in states[key]["found_inf_per_device"].values():
                    self._look_at_once(stepping, found_inf)

    def _look_at_once(self, stepping: _Stepping, found_inf: torch.Tensor) -> None:
        optimizer = stepping.optimizer()
        if optimizer is None:
            return
        if found_inf.device.type != "cpu":
            if self._sampler.is_alert:
                self._measure(optimizer, How(stepping.stays_scaled, gate=found_inf))
        elif host_scalar(found_inf) and id(optimizer) not in self._open.skipped:
            self._open.skipped.add(id(optimizer))
            if self._sampler.takes_skip():
                self._measure(optimizer, How(stepping.stays_scaled))

    def _before_direct_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if Topic.GRADIENT in self._sampler.wanted and not torch.compiler.is_compiling():
            self._guard.run(self.before_direct_step, optimizer)

    def before_direct_step(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step without a scaler."""
        if self._registry.index_of(optimizer) is not None:
            self._measure(optimizer, WHOLE)

    def _measure(self, optimizer: Optimizer, how: How) -> None:
        # Once per iteration: steps may be nested. Verdicts are one per device.
        devices = self._open.measured.setdefault(id(optimizer), set())
        device = None if how.gate is None else how.gate.device
        if devices.isdisjoint({None, device}):
            devices.add(device)
            self._measuring.measure(Topic.GRADIENT, list(self._gradients(optimizer)), how)

    def _gradients(self, optimizer: Optimizer) -> Iterator[Item]:
        index = self._registry.admit(optimizer)
        for name, parameter in self._names.of_optimizer(optimizer, index):
            if parameter.grad is not None:
                yield Item(name, module_of(name), parameter.grad)
