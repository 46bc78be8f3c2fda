"""Gradients whose elements a program limits itself, in a hook or between backward and the step."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.utils import clip_grad

from ampwatch.diagnosis.evidence.calls import ScaledClip
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.hooks.sources import is_in_file, is_in_optimizer, user_source
from ampwatch.training.kernels.admission import is_of_floats, is_plain
from ampwatch.training.model.names import parameters_of
from ampwatch.training.model.scaler import READY, scale_on_host, stage_of
from ampwatch.training.ops.events import OpSensor
from ampwatch.training.ops.storage import Memory
from ampwatch.training.private import foreach_norm

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from ampwatch.training.hooks.events import StepBegan, TensorsSwapping, Unscaling
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op, OpsBegan, OpsEnded
    from ampwatch.training.ops.info import OpInfo

MAX_KEPT = 4096
"""Clamps that are remembered in an iteration."""

CLAMPS = frozenset({"clamp", "clamp_", "clip", "clip_", "hardtanh", "hardtanh_"})
"""Ops that limit numbers to both sides."""

MIN_RATIO = 64.0
"""How many times the limit the scale has to be: a limit that was multiplied by the scale is no mistake."""


class _Clamp(NamedTuple):
    """A tensor that was limited."""

    memory: Memory  # where it lies
    limit: float  # the largest magnitude that is left
    source: str  # ``file:line`` of the call


class HandClips(OpSensor):
    """Finds gradients of parameters, still multiplied by the loss scale, whose elements the program has limited.

    Autograd takes over what a hook returns where there is no gradient yet, and a clamp in place leaves
    the gradient where it is. So the gradient lies where the result of a clamp lies, and was limited if its largest
    magnitude is the limit.

    Cost:
        Nothing in iterations whose ops are not observed. Less than 1 us for an op that is no clamp. In a program
        that limits gradients itself, on a CPU 20 us for each of them, and some 50 us when they are unscaled; one
        transfer.
    """

    name = "hand_clips"
    is_thread_safe = True
    waking = frozenset({"ops_began"})
    is_dormant = True

    def __init__(self, context: Context) -> None:
        self._scaler = context.some_scaler
        self._registry = context.registry
        self._observe = context.observe
        self._deferred = context.deferred
        self._step = 0
        self._is_after_backward = False
        self._clamps: dict[int, _Clamp] = {}

    def forget(self) -> None:
        """Refer to no tensor."""
        self._is_after_backward = False
        self._clamps.clear()

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

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:
        """Whether an op limits numbers, or is a product, which shows that backward runs."""
        return info.name in CLAMPS or (in_backward and bool(info.kind.has_flops))

    def glance(self, call: OpCall) -> bool:
        """Take note of a product of backward; return whether an op is no clamp."""
        self._is_after_backward |= bool(call.info.kind.has_flops)
        return call.info.name not in CLAMPS

    def op(self, event: Op) -> None:
        """Remember the result of a clamp within backward, or after it."""
        call, place = event
        is_within = place.phase is Phase.BACKWARD
        if call.info.kind.has_flops:
            self._is_after_backward |= is_within
        elif (is_within or self._is_after_backward) and not is_in_optimizer():
            self._clamp(call)

    def unscaling(self, event: Unscaling) -> None:
        """Judge the gradients that the user is about to have unscaled."""
        self._judge(event.scaler, event.optimizer)

    def step_began(self, event: StepBegan) -> None:
        """Judge the gradients that the scaler is about to unscale."""
        self._judge(event.scaler, event.optimizer)

    def _judge(self, scaler: torch.amp.GradScaler, optimizer: Optimizer) -> None:
        if scaler is not self._scaler or stage_of(scaler, optimizer) != READY:
            return
        self._check(optimizer)
        # Another optimizer has gradients of its own. What is changed from here on is unscaled.
        if len(self._registry) <= 1:
            self._is_after_backward = False

    def _clamp(self, call: OpCall) -> None:
        limit, out = _limit(call), call.out
        if len(self._clamps) >= MAX_KEPT or not math.isfinite(limit):
            return
        if is_plain(out) and not is_in_file(clip_grad.__file__):
            self._clamps[out.data_ptr()] = _Clamp(Memory(out), limit, user_source())

    # What they are used for.

    def _check(self, optimizer: Optimizer) -> None:
        """Look for limits in the gradients that are about to be unscaled."""
        if not self._clamps:
            return
        gradients = [p.grad for p in parameters_of(optimizer) if is_of_floats(p.grad)]
        if not gradients:
            return
        # What is put together lies on one device. Of a model on several the first one tells as much.
        mine = {g.data_ptr(): g for g in gradients if g.device == gradients[0].device}
        self._compare(optimizer, mine)
        for address in mine:
            self._clamps.pop(address, None)

    def _compare(self, optimizer: Optimizer, gradients: dict[int, Tensor]) -> None:
        scale = scale_on_host(self._scaler)
        first: _Clamp | None = None
        # A program has few limits, and many gradients.
        limited: dict[tuple[float, torch.dtype], list[Tensor]] = defaultdict(list)
        for address, gradient in gradients.items():
            clamp = self._clamps.get(address)
            # Memory that was freed is given to other tensors.
            if clamp is None or not clamp.memory.is_of(gradient):
                continue
            if not clamp.limit * MIN_RATIO > scale:  # the host may not know the scale: NaN
                limited[clamp.limit, gradient.dtype].append(gradient)
                first = first or clamp
        if first is None:
            return
        index, step = self._registry.admit(optimizer), self._step
        limit, source = first.limit, first.source
        # What is larger was multiplied since, or added to.
        is_limited = [
            (
                torch.stack(foreach_norm([g.detach() for g in some], math.inf)).float()
                == _rounded(limit, dtype)
            ).any()
            for (limit, dtype), some in limited.items()
        ]

        def judge(read: list[float]) -> None:
            if read[0] > 0.0:
                self._observe(ScaledClip(step, index, "clamp", limit, math.nan, scale, source))

        self._deferred.read(torch.stack(is_limited).any(), judge)


def _rounded(number: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(number, dtype=dtype).float())


def _limit(call: OpCall) -> float:
    """Return the largest magnitude that a clamp leaves; NaN where it has no number on both sides."""
    given = dict(zip(call.info.arguments, call.args, strict=False)) | call.kwargs
    low = given.get("min", given.get("min_val"))
    high = given.get("max", given.get("max_val"))
    if not isinstance(low, (int, float)) or not isinstance(high, (int, float)):
        return math.nan
    return max(abs(low), abs(high))
