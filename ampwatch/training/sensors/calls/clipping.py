"""Calls of PyTorch's gradient clipping: before ``unscale_``, or by a norm that is not finite."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING

import torch
from msgspec import Struct, field

from ampwatch.diagnosis.evidence.calls import NonfiniteClip, ScaledClip
from ampwatch.training.devices import Link
from ampwatch.training.hooks.bus import AWAKE
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.hooks.sources import user_source
from ampwatch.training.model.living import alive
from ampwatch.training.model.names import module_of, parameters_of
from ampwatch.training.model.scaler import READY, scale_on_host, stage_of, stages
from ampwatch.training.model.tensors import num_nonfinite
from ampwatch.training.private import DECIDES_ON_DEVICE, version_of
from ampwatch.training.transfer.readback import host_scalar, is_plain_scalar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.optim import Optimizer

    from ampwatch.training.hooks import events as on
    from ampwatch.training.iteration.context import Context


MAX_WITNESSES = 64
"""Gradients of a call that are remembered, to see later whether they are still there; of a longer
list every k-th is."""

BY_NORM = "clip_grad_norm_"
BY_VALUE = "clip_grad_value_"


class ClipCall(Struct, eq=False):
    """One call of a clipping function.

    Attributes:
        function: Name of the function.
        limit: ``max_norm`` or ``clip_value``; NaN where that is a tensor.
        gradients: Gradients by identity, with their versions before the call.
        changes: Number of operations in place that the call may take.
        scale: The scale, NaN unless it lies in host memory.
        source: ``file:line`` of the call.
        norm: The norm, NaN where it cannot be read, ``None`` while it is on its way.
        broken: Name of the parameter whose gradient was not finite, and the number of non-finite
            elements.
        scaled_for: Numbers of optimizers whose gradients were unscaled after the call, and the
            iterations in which they were.
        stepped_by: Numbers of the optimizers that stepped with the gradients, and the iterations.
    """

    function: str
    limit: float
    gradients: dict[int, tuple[weakref.ref[Tensor], int]]
    changes: int
    scale: float
    source: str
    norm: float | None = math.nan
    broken: tuple[str, int] = ("", 0)
    scaled_for: list[tuple[int, int]] = field(default_factory=list)
    stepped_by: list[tuple[int, int]] = field(default_factory=list)

    def is_there(self) -> bool:
        """Whether clipped gradients are still there, and nobody has changed them since."""
        return any(map(self._is_unchanged, self.gradients))

    def is_stepped_with(self, mine: set[int]) -> bool:
        """Whether some of ``mine``, by identity, are clipped gradients, unchanged since."""
        return any(self._is_unchanged(key) for key in mine & self.gradients.keys())

    def is_unscaled_with(self, mine: set[int]) -> bool:
        """Whether some of ``mine``, by identity, were clipped; losses may have been added since."""
        return any(self.gradients[key][0]() is not None for key in mine & self.gradients.keys())

    def _is_unchanged(self, key: int) -> bool:
        # An identity is given away again once its owner is freed; the reference proves whose it is.
        # Every operation in place raises the version, and those of the call itself are allowed.
        reference, version = self.gradients[key]
        gradient = reference()
        if gradient is None:
            return False
        return version <= version_of(gradient) <= version + self.changes

    def is_repaired(self) -> bool:
        """Whether gradients in host memory are finite again, although their norm was not."""
        if self.norm is None or math.isfinite(self.norm):
            return False
        gradients = [reference() for reference, _ in self.gradients.values()]
        here = [g for g in gradients if g is not None and g.device.type == "cpu"]
        return bool(here) and not any(num_nonfinite(g) for g in here)


def witnesses(gradients: Sequence[Tensor]) -> dict[int, tuple[weakref.ref[Tensor], int]]:
    """Return gradients, or some of them, by identity, with their versions."""
    # Rounded up, so that no more than MAX_WITNESSES are left; 1 for an empty list.
    some = gradients[:: -(-len(gradients) // MAX_WITNESSES) or 1]
    return {id(g): (weakref.ref(g), version_of(g)) for g in some}


MAX_CALLS = 16
"""Calls whose gradients have not been stepped with yet."""


class ClippingSensor(Sensor):
    """Observes ``clip_grad_norm_``, ``clip_grad_value_`` and ``clip_grads_with_norm_``.

    Calls by an imported name are observed as well: the functions that these three call are
    replaced, not they themselves. A call is remembered only while it may be a mistake, until its
    gradients are gone.

    Args:
        context: Shared parts of the training.
        link: Says whether norms are in host memory.

    Cost:
        2 us a call on a CPU; on a device also a copy of 4 bytes and an event.
    """

    name = "clipping"
    waking = frozenset({"clipping_by_norm", "clipping_by_value", "devices_known"})
    is_dormant = True
    rests = True

    def __init__(self, context: Context, link: Link | None = None) -> None:
        self._bus = context.bus
        self._registry = context.registry
        self._trained = context.trained
        self._names = context.names
        self._iteration = context.iteration
        self._observe = context.observe
        self._link = link or Link()
        self._deferred = context.deferred
        self._calls: list[ClipCall] = []

    @property
    def _scaler(self) -> torch.amp.GradScaler | None:
        scaler = self._bus.scaler
        return scaler if scaler is not None and scaler.is_enabled() else None

    def devices_known(self, event: on.DevicesKnown) -> None:
        """Pin memory."""
        if event.has_accelerator:
            self._deferred.prepare()

    def removed(self) -> None:
        """Forget all calls."""
        self._keep([])

    def _keep(self, calls: list[ClipCall]) -> None:
        # Nearly always no call is suspicious, and then no other event matters either.
        self._calls = calls
        self.is_dormant = not calls
        if calls:
            self._bus.wake(AWAKE)

    # Clipping.

    def clipping_by_norm(self, event: on.ClippingByNorm) -> None:
        """Remember a call that may be a mistake: gradients are about to be scaled to a norm."""
        parameters, limit, norm = event
        if isinstance(parameters, torch.Tensor):
            parameters = [parameters]
        if not isinstance(parameters, (list, tuple)):
            return  # an iterator can be gone through only once, and PyTorch still needs it
        self._deferred.poll()
        if not isinstance(norm, torch.Tensor) or not is_plain_scalar(norm):
            if self._is_suspicious():
                self._remember(BY_NORM, limit, _all_of(parameters), 1)
        elif not self._link.is_host(norm.device):
            self._send(self._remember(BY_NORM, limit, _all_of(parameters), 1), norm)
        elif not math.isfinite(value := host_scalar(norm)):
            call = self._remember(BY_NORM, limit, _all_of(parameters), 1)
            call.norm = value
            # A scaler skips the step, as it should, of the optimizer whose gradients they are.
            if self._scaler is None or self._is_joint(parameters):
                call.broken = self._first_broken(parameters)
        elif self._is_suspicious():
            self._remember(BY_NORM, limit, _all_of(parameters), 1).norm = value

    def clipping_by_value(self, event: on.ClippingByValue) -> None:
        """Remember a call that may be a mistake: gradients are about to be limited one by one."""
        if self._is_suspicious():
            # The foreach implementation takes two operations in place, the other one.
            self._remember(BY_VALUE, event.limit, event.gradients, 2)

    def _is_suspicious(self) -> bool:
        """Whether there may be gradients that are to be unscaled and have not been yet."""
        if self._scaler is None:
            return False
        known = stages(self._scaler)
        return READY in known or len(known) < max(1, len(self._registry))

    def _is_joint(self, parameters: Sequence[Tensor]) -> bool:
        """Whether parameters of more than one optimizer are clipped in one call."""
        clipped = {id(p) for p in parameters}
        owners = 0
        for optimizer in alive(self._trained.met.values()):
            owners += any(id(p) in clipped for p in parameters_of(optimizer))
        return owners > 1

    def _remember(
        self, function: str, limit: object, gradients: Sequence[Tensor], changes: int
    ) -> ClipCall:
        call = ClipCall(
            function,
            float(limit) if isinstance(limit, (int, float)) else math.nan,
            witnesses(gradients),
            changes,
            math.nan if self._scaler is None else scale_on_host(self._scaler),
            user_source(),
        )
        self._keep([*self._calls[-MAX_CALLS + 1 :], call])
        return call

    def _send(self, call: ClipCall, norm: Tensor) -> None:
        def arrive(read: list[float]) -> None:
            call.norm = read[0]
            self._report(call)

        call.norm, dropped = None, self._deferred.dropped
        # The landing place is float32: a copy that has to convert is not a plain one.
        self._deferred.read(norm.float(), arrive)
        if self._deferred.dropped > dropped:
            call.norm = math.nan

    def _first_broken(self, parameters: Sequence[Tensor]) -> tuple[str, int]:
        """Return the parameter at which backward met the first non-finite gradient.

        Backward goes from the last layers to the first and takes non-finite values along, so the
        first one is in the last module that has any. Only done for a norm that is not finite.
        """
        counts = {id(p): num_nonfinite(p.grad) for p in parameters if p.grad is not None}
        broken = [(name, counts.get(id(p), 0)) for name, p in self._names.parameters()]
        broken = [(name, count) for name, count in broken if count]
        if not broken:
            return "", 0
        module = module_of(broken[-1][0])
        return max((b for b in broken if module_of(b[0]) == module), key=lambda b: b[1])

    # What becomes of the gradients.

    def unscaling(self, event: on.Unscaling) -> None:
        """Note that the user has the gradients of an optimizer divided by the scale."""
        self._unscale(event.scaler, event.optimizer)

    def step_began(self, event: on.StepBegan) -> None:
        """Note that the scaler divides the gradients itself, unless the user has had it done."""
        self._unscale(event.scaler, event.optimizer)

    def _unscale(self, scaler: torch.amp.GradScaler, optimizer: Optimizer) -> None:
        if scaler is not self._scaler or stage_of(scaler, optimizer) != READY:
            return
        mine = _gradients_of(optimizer)
        for call in self._calls:
            if call.is_unscaled_with(mine):
                call.scaled_for.append((self._registry.admit(optimizer), self._iteration.step))
                self._report(call)

    def step_ended(self, event: on.StepEnded) -> None:
        """Forget the calls whose gradients the scaler has used."""
        if event.scaler is self._scaler:
            self._forget(_gradients_of(event.optimizer))

    def updated(self, event: on.Updated) -> None:
        """Forget all calls: the scale may be another one."""
        if event.scaler is self._scaler:
            self._keep([])

    def optimizer_stepped(self, event: on.OptimizerStepped) -> None:
        """Report a step with gradients that a norm that is not finite has spoilt.

        The scaler takes one if it was clipped with the gradients of other optimizers: those are not
        finite, and what it has found in its own was found before.
        """
        # Whether one that decides on the device has stepped nobody knows yet.
        is_unknown = event.by_scaler and getattr(event.optimizer, DECIDES_ON_DEVICE, False)
        index = None if is_unknown else self._registry.index_of(event.optimizer)
        if index is None:
            return
        mine = _gradients_of(event.optimizer)
        for call in self._calls:
            if call.is_stepped_with(mine) and not call.is_repaired():
                call.stepped_by.append((index, self._iteration.step))
                self._report(call)
        self._forget(mine)

    def _forget(self, gradients: set[int]) -> None:
        """Forget gradients that were used, and the calls that had no others."""
        for call in self._calls:
            for used in gradients & call.gradients.keys():
                del call.gradients[used]
        self._keep([call for call in self._calls if call.gradients])

    def zeroed(self, _event: on.Zeroed) -> None:
        """Forget the calls whose gradients are gone."""
        self._keep([c for c in self._calls if c.is_there()])

    def _report(self, call: ClipCall) -> None:
        """Report a call once its norm has arrived and its gradients have been used."""
        norm = call.norm
        if norm is None:
            return
        is_broken = call.function == BY_NORM and not math.isfinite(norm)
        for index, step in call.stepped_by if is_broken else ():
            self._observe(NonfiniteClip(step, index, *call.broken, norm, call.limit, call.source))
        call.stepped_by.clear()
        for index, step in call.scaled_for:
            # A norm that cannot be read is taken for one that was too large.
            if math.isnan(norm) or norm > call.limit:
                self._observe(
                    ScaledClip(
                        step, index, call.function, call.limit, norm, call.scale, call.source
                    )
                )
        call.scaled_for.clear()


def _all_of(parameters: Sequence[Tensor]) -> list[Tensor]:
    return [p.grad for p in parameters if p.grad is not None]


def _gradients_of(optimizer: Optimizer) -> set[int]:
    return {id(p.grad) for p in parameters_of(optimizer) if p.grad is not None}
