"""What a program does to gradients while these are multiplied by the loss scale, op by op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ampwatch.numerics.units.ops import Phase
from ampwatch.training.hooks.sources import is_in_optimizer
from ampwatch.training.model.scaler import READY, stage_of
from ampwatch.training.ops.events import OpSensor
from ampwatch.training.ops.values import is_of_floats, shapes_by_address

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from ampwatch.training.hooks.events import StepBegan, TensorsSwapping, Unscaling
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op, OpPlace, OpsBegan, OpsEnded

MAX_KEPT = 4096
"""Tensors that are remembered in an iteration, of each sort."""


class ScaledGradientOps(OpSensor):
    """Follows ops from backward to ``unscale_`` and judges the gradients there.

    Args:
        context: Shared parts of the training, with an enabled scaler.
    """

    is_thread_safe = True
    waking = frozenset({"ops_began"})
    is_dormant = True

    def __init__(self, context: Context) -> None:
        self._scaler = context.some_scaler
        self._registry = context.registry
        self._names = context.names
        self._observe = context.observe
        self._step = 0
        self._is_after_backward = False
        # ``None`` before they are asked for: backward may make them anew.
        self._gradients: dict[int, torch.Size] | None = None

    def change(self, call: OpCall, place: OpPlace) -> None:
        """Follow an op of backward, or of what comes after it.

        Args:
            call: An op that is wanted, outside of the optimizer.
            place: Where it ran. Within backward gradients are not all there yet.
        """
        raise NotImplementedError

    def check(self, optimizer: Optimizer) -> None:
        """Judge the gradients of an optimizer, which are about to be unscaled."""
        raise NotImplementedError

    def forget(self) -> None:
        """Refer to no tensor."""
        self._gradients = None
        self._is_after_backward = False

    def ops_began(self, event: OpsBegan) -> None:
        """Begin an iteration."""
        self._step = event.step
        self.forget()
        self.is_dormant = False

    def ops_ended(self, _event: OpsEnded) -> None:
        """Refer to no tensor any more, until ops are observed again."""
        self.is_dormant = True
        self.forget()

    def tensors_swapping(self, _event: TensorsSwapping) -> None:
        """Refer to no tensor."""
        self.forget()

    def glance(self, call: OpCall) -> bool:
        """Whether an op changes no gradient: as a rule none is there yet."""
        if call.info.kind.has_flops:
            self.see_backward()
            return True
        return not self._is_after_backward

    def op(self, event: Op) -> None:
        """Take note that backward runs, and of what becomes of gradients after it."""
        call, place = event
        is_within = place.phase is Phase.BACKWARD
        if call.info.kind.has_flops:
            if is_within:
                self.see_backward()
        elif (is_within or self._is_after_backward) and not is_in_optimizer():
            self.change(call, place)

    def see_backward(self) -> None:
        """Have gradients looked for from now on; backward may make them anew.

        A product shows that it runs: outside of backward products are not wanted.
        """
        self._is_after_backward = True
        self._gradients = None

    def is_gradient(self, tensor: Any) -> bool:
        """Whether a tensor lies where the gradient of a parameter lies."""
        if self._gradients is None:
            self._gradients = shapes_by_address(p.grad for _, p in self._names.parameters())
        return is_of_floats(tensor) and self._gradients.get(tensor.data_ptr()) == tensor.shape

    def unscaling(self, event: Unscaling) -> None:
        """Judge the gradients that the user is about to have unscaled."""
        self._judge(event.scaler, event.optimizer)

    def step_began(self, event: StepBegan) -> None:
        """Judge the gradients that the scaler is about to unscale."""
        self._judge(event.scaler, event.optimizer)

    def _judge(self, scaler: torch.amp.GradScaler, optimizer: Optimizer) -> None:
        if scaler is not self._scaler or stage_of(scaler, optimizer) != READY:
            return
        self.check(optimizer)
        # Another optimizer has gradients of its own. What is changed from here on is unscaled.
        if len(self._registry) <= 1:
            self._is_after_backward = False
