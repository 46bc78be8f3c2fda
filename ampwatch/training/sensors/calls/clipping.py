"""Calls of PyTorch's gradient clipping: before ``unscale_``, or by a norm that is not finite."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from ampwatch.diagnosis.evidence.calls import NonfiniteClip, ScaledClip
from ampwatch.training.hooks.clip import BY_NORM, BY_VALUE, ClipCall, num_nonfinite, witnesses
from ampwatch.training.hooks.compiling import is_traced
from ampwatch.training.hooks.sources import user_source
from ampwatch.training.hooks.taps import Listener, listen, listen_to_function
from ampwatch.training.model.names import module_of, parameters_of
from ampwatch.training.model.scaler import READY, scale_on_host, stage_of, stages
from ampwatch.training.transfer.losses import is_capturing
from ampwatch.training.transfer.readback import Link, Readback, host_scalar, is_plain_scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor
    from torch.utils.hooks import RemovableHandle

    from ampwatch.guard import Guard
    from ampwatch.training.model.names import Names
    from ampwatch.training.model.optimizers import OptimizerRegistry

SLOTS = 16
"""Norms that may be on their way from the device at a time."""

MAX_CALLS = 16
"""Calls whose gradients have not been stepped with yet."""


class ClippingSensor:
    """Hears of ``clip_grad_norm_``, ``clip_grad_value_`` and ``clip_grads_with_norm_``.

    Also where they were imported by name: what is listened to is what they look up when they are
    called. A call is remembered only while it may be a mistake: until its gradients are gone.

    Args:
        scaler: The watched scaler or ``None``.
        registry: Numbers the optimizers.
        names: Names of the parameters.
        step: Returns the index of the open iteration.
        observe: Takes what was found.
        clipped: Told of the gradients that are about to be clipped, by identity, and of how many
            operations in place that takes.
        guard: The fail-open boundary.
        link: How norms travel to the host.

    Cost:
        2 us a call on a CPU; on a device a copy of 4 bytes and an event in addition.
    """

    name = "clipping"

    def __init__(
        self,
        scaler: torch.amp.GradScaler | None,
        registry: OptimizerRegistry,
        names: Names,
        step: Callable[[], int],
        observe: Callable[[object], None],
        clipped: Callable[[Iterable[int], int], None] | None,
        guard: Guard,
        link: Link | None = None,
    ) -> None:
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._registry = registry
        self._names = names
        self._step = step
        self._observe = observe
        self._clipped = clipped
        self._guard = guard
        self._link = link or Link()
        self._readback = Readback(SLOTS, 1, self._link)
        self._listeners: list[Listener | RemovableHandle] = []
        self._calls: list[ClipCall] = []
        self._stepping = False

    def install(self) -> None:
        """Listen to clipping, to the scaler, and to steps."""
        on_norm = self._guarded(self.by_norm)
        if hasattr(clip_grad, "_clip_grads_with_norm_"):
            self._listeners.append(
                listen_to_function(clip_grad, "_clip_grads_with_norm_", before=on_norm)
            )
            if hasattr(nn.utils, "clip_grads_with_norm_"):
                self._listeners.append(
                    listen_to_function(nn.utils, "clip_grads_with_norm_", before=on_norm)
                )
        else:  # a version in which the function is in one piece
            for module in (clip_grad, nn.utils):
                self._listeners.append(listen_to_function(module, BY_NORM, before=on_norm))
        if hasattr(clip_grad, "_group_tensors_by_device_and_dtype"):
            self._listeners.append(
                listen_to_function(
                    clip_grad, "_group_tensors_by_device_and_dtype", before=self._on_grouping
                )
            )
        self._listeners += [
            register_optimizer_step_post_hook(self._on_stepped),
            listen(Optimizer, "zero_grad", after=self._on_zeroed),
            listen(nn.Module, "zero_grad", after=self._on_zeroed),
        ]
        if self._scaler is not None:
            self._listen_to(self._scaler)

    def _listen_to(self, scaler: torch.amp.GradScaler) -> None:
        for name, before, after in (
            ("unscale_", self._on_unscale, None),
            ("step", self._on_step, self._on_step_end),
            ("update", None, self._on_update),
        ):
            self._listeners.append(
                listen(type(scaler), name, instance=scaler, before=before, after=after)
            )

    def _guarded(self, work: Callable[..., None]) -> Callable[..., None]:
        def advice(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not is_traced():
                self._guard.run(work, args, kwargs)

        return advice

    # Nearly always nothing was clipped that matters, and there is nothing to be guarded.

    def _on_unscale(self, _scaler: Any, args: Any, kwargs: Any) -> None:
        if self._calls and not self._stepping:
            self._guard.run(self.before_unscale, args, kwargs)

    def _on_step(self, _scaler: Any, args: Any, kwargs: Any) -> None:
        if self._calls:
            self._stepping = False  # a step that raised does not say that it is over
            self._guard.run(self.before_unscale, args, kwargs)
        self._stepping = True

    def _on_step_end(self, _scaler: Any, args: Any, kwargs: Any) -> None:
        self._stepping = False
        if self._calls:
            self._guard.run(self.after_step, args, kwargs)

    def _on_update(self, _scaler: Any, _args: Any, _kwargs: Any) -> None:
        self._stepping = False
        self._calls.clear()

    def remove(self) -> None:
        """Stop listening; forget all."""
        for listener in self._listeners:
            listener.remove()
        self._listeners.clear()
        self._calls.clear()

    def _on_grouping(self, args: tuple[Any, ...], _kwargs: Any) -> None:
        # Looked up by all of them; here only by the one that has no function of its own to call.
        caller = sys._getframe(3)  # noqa: SLF001 - behind the tap's two; the only way
        if caller.f_code.co_name == BY_VALUE and not is_traced():
            self._guard.run(self.by_value, args[0][0], caller.f_locals.get("clip_value"))

    def _on_stepped(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._calls and not self._stepping:
            self._guard.run(self.stepped, optimizer)

    def _on_zeroed(self, _owner: Any, _args: Any, _kwargs: Any) -> None:
        if self._calls:
            self._guard.run(self.tidy)

    # Clipping.

    def by_norm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Gradients are about to be scaled down to a norm."""
        parameters = args[0] if args else kwargs.get("parameters")
        limit = args[1] if len(args) > 1 else kwargs.get("max_norm")
        norm = args[2] if len(args) > 2 else kwargs.get("total_norm")
        if isinstance(parameters, torch.Tensor):
            parameters = [parameters]
        if not isinstance(parameters, (list, tuple)):
            return  # an iterator can be gone through only once
        self._take_arrived()
        self._stepping = False  # a step that raised does not say that it is over
        if self._clipped is not None:
            self._clipped((id(p.grad) for p in parameters if p.grad is not None), 1)
        if not isinstance(norm, torch.Tensor) or not is_plain_scalar(norm) or is_capturing(norm):
            if self._is_suspicious():
                self._remember(BY_NORM, limit, _all_of(parameters), 1)
        elif not self._link.on_host(norm):
            self._send(self._remember(BY_NORM, limit, _all_of(parameters), 1), norm)
        elif not math.isfinite(value := host_scalar(norm)):
            call = self._remember(BY_NORM, limit, _all_of(parameters), 1)
            call.norm = value
            if self._scaler is None:  # which would skip the step, as it should
                call.broken = self._first_broken(parameters)
        elif self._is_suspicious():
            self._remember(BY_NORM, limit, _all_of(parameters), 1).norm = value

    def by_value(self, gradients: Sequence[Tensor], limit: object) -> None:
        """Gradients are about to be limited one by one."""
        # With foreach in two operations, else in one.
        if self._clipped is not None:
            self._clipped([id(g) for g in gradients], 2)
        if self._is_suspicious():
            self._remember(BY_VALUE, limit, gradients, 2)

    def _is_suspicious(self) -> bool:
        """Whether there may be gradients that are to be unscaled and have not been yet."""
        if self._scaler is None:
            return False
        known = stages(self._scaler)
        return READY in known or len(known) < max(1, len(self._registry))

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
        del self._calls[: -MAX_CALLS + 1]
        self._calls.append(call)
        return call

    def _send(self, call: ClipCall, norm: Tensor) -> None:
        row = self._readback.open()
        if row is not None:
            call.norm = None
            # What comes from a device lands in float32.
            self._readback.put(row, 0, norm if norm.dtype is torch.float32 else norm.float())
            self._readback.seal(row, call)

    def _take_arrived(self) -> None:
        for values, call in self._readback.arrived():
            call.norm = values[0]
            self._say(call)

    def _first_broken(self, parameters: Sequence[Tensor]) -> tuple[str, int]:
        """Return the parameter at which backward met the first non-finite gradient.

        Backward goes from the last layers to the first and takes what is not finite along, so it
        is looked for in the last module that has any. Only done for a norm that is not finite.
        """
        counts = {id(p): num_nonfinite(p.grad) for p in parameters if p.grad is not None}
        broken = [(name, counts.get(id(p), 0)) for name, p in self._names.parameters()]
        broken = [(name, count) for name, count in broken if count]
        if not broken:
            return "", 0
        module = module_of(broken[-1][0])
        return max((b for b in broken if module_of(b[0]) == module), key=lambda b: b[1])

    # What becomes of the gradients.

    def before_unscale(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """``unscale_`` begins, called by the user or by ``step``."""
        optimizer = args[0] if args else kwargs["optimizer"]
        scaler = self._scaler
        if scaler is None or stage_of(scaler, optimizer) != READY:
            return
        mine = _gradients_of(optimizer)
        for call in self._calls:
            if call.is_unscaled_with(mine):
                call.scaled_for.append((self._registry.admit(optimizer), self._step()))
                self._say(call)

    def after_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """``scaler.step`` has returned: these gradients have been used."""
        mine = _gradients_of(args[0] if args else kwargs["optimizer"])
        self._calls = [c for c in self._calls if mine.isdisjoint(c.gradients)]

    def stepped(self, optimizer: Optimizer) -> None:
        """``optimizer.step`` has run, and the scaler did not call it."""
        index = self._registry.index_of(optimizer)
        if index is None:
            return
        mine = _gradients_of(optimizer)
        for call in self._calls:
            if call.is_stepped_with(mine) and not call.is_repaired():
                call.stepped_by = (index, self._step())
                self._say(call)
        self._calls = [c for c in self._calls if mine.isdisjoint(c.gradients)]

    def tidy(self) -> None:
        """Gradients were set to zero or to ``None``."""
        self._calls = [c for c in self._calls if c.is_there()]

    def _say(self, call: ClipCall) -> None:
        """Tell of a call once its norm has arrived and its gradients have been used."""
        norm = call.norm
        if norm is None:
            return
        if call.stepped_by is not None and call.function == BY_NORM and not math.isfinite(norm):
            index, step = call.stepped_by
            call.stepped_by = None
            self._observe(NonfiniteClip(step, index, *call.broken, norm, call.limit, call.source))
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
