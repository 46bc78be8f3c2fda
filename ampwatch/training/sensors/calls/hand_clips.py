"""Gradients that a program limits itself, in a hook or between backward and the step."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.utils import clip_grad

from ampwatch.diagnosis.evidence.calls import RescaledGradients, ScaledClip
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.hooks.sources import is_in_file, is_in_optimizer, user_source
from ampwatch.training.kernels.admission import is_of_floats, is_plain
from ampwatch.training.kernels.norms import norms_of
from ampwatch.training.model.names import parameters_of
from ampwatch.training.model.scaler import READY, scale_on_host, stage_of
from ampwatch.training.ops.call import tensors_among
from ampwatch.training.ops.events import OpSensor
from ampwatch.training.ops.operands import shapes_by_address
from ampwatch.training.ops.storage import Memory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from torch import Tensor
    from torch.optim import Optimizer

    from ampwatch.training.hooks.events import StepBegan, TensorsSwapping, Unscaling
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op, OpsBegan, OpsEnded
    from ampwatch.training.ops.info import OpInfo

MAX_KEPT = 4096
"""Tensors that are remembered in an iteration, of each sort."""

CLAMPS = frozenset({"clamp", "clamp_", "clip", "clip_", "hardtanh", "hardtanh_"})
"""Ops that limit numbers to both sides."""

MAKES = frozenset({"mul", "div", "where", "minimum", "maximum"})
"""Ops that make another tensor of a gradient, which may be copied into it."""

SCALES = frozenset({"mul_", "div_", "_foreach_mul_", "_foreach_div_"})
"""Ops that multiply gradients in place."""

MIN_RATIO = 64.0
"""How many times the limit the scale has to be: a limit that was multiplied by the scale is no mistake."""


class _Clamp(NamedTuple):
    """A tensor that was limited."""

    memory: Memory  # where it lies
    limit: float  # the largest magnitude that is left
    source: str  # ``file:line`` of the call


class _Changed(NamedTuple):
    """A gradient that was changed, or a tensor that was made of one.

    Attributes:
        memory: Where it lies.
        gradient: Address of the gradient.
        norm: L2 norm of the gradient before, on its device.
        source: ``file:line`` of the change.
    """

    memory: Memory
    gradient: int
    norm: Tensor
    source: str


class HandClips(OpSensor):
    """Finds gradients of parameters, still multiplied by the loss scale, that the program has limited.

    By value: autograd takes over what a hook returns where there is no gradient yet, and a clamp in place leaves
    the gradient where it is. So the gradient lies where the result of a clamp lies, and was limited if its largest
    magnitude is the limit.

    By norm: the program multiplies gradients, or copies what it has made of them into them. Their norm before and
    after is reported; what it is from one iteration to the next shows whether there is a limit.

    Cost:
        Nothing in iterations whose ops are not observed. Less than 1 us for an op that is none of these. In a program
        that changes gradients itself, on a CPU for each of them 20 to 100 us an op that does, and some 50 us when they
        are unscaled; one transfer.
    """

    name = "hand_clips"
    is_thread_safe = True
    waking = frozenset({"ops_began"})
    is_dormant = True

    def __init__(self, context: Context) -> None:
        self._scaler = context.some_scaler
        self._registry = context.registry
        self._names = context.names
        self._observe = context.observe
        self._deferred = context.deferred
        self._step = 0
        self._is_after_backward = False
        # ``None`` before they are asked for: backward may make them anew.
        self._gradients: dict[int, torch.Size] | None = None
        self._clamps: dict[int, _Clamp] = {}
        self._made: dict[int, _Changed] = {}
        self._before: dict[int, _Changed] = {}

    def forget(self) -> None:
        """Refer to no tensor."""
        self._gradients = None
        self._is_after_backward = False
        self._clamps.clear()
        self._made.clear()
        self._before.clear()

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
        """Whether an op limits numbers, shows that backward runs, or may change gradients after it."""
        if info.name in CLAMPS or info.name in SCALES:
            return True
        if in_backward:
            return bool(info.kind.has_flops)
        return info.name in MAKES or info.name == "copy_"

    def prefilter(self, call: OpCall) -> bool:
        """Whether an op changes no gradient: as a rule none is there yet, but for a clamp within backward."""
        if call.info.kind.has_flops:
            self._see_backward()
            return True
        return not self._is_after_backward and call.info.name not in CLAMPS

    def op(self, event: Op) -> None:
        """Take note that backward runs, and of what becomes of gradients after it."""
        call, place = event
        is_within = place.phase is Phase.BACKWARD
        if call.info.kind.has_flops:
            if is_within:
                self._see_backward()
        elif (is_within or self._is_after_backward) and not is_in_optimizer():
            self._change(call, is_within=is_within)

    def _see_backward(self) -> None:
        """Have gradients looked for from now on; backward may make them anew.

        A product shows that it runs: outside of backward products are not wanted.
        """
        self._is_after_backward = True
        self._gradients = None

    def _is_gradient(self, tensor: Any) -> bool:
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
        self._check(optimizer)
        # Another optimizer has gradients of its own. What is changed from here on is unscaled.
        if len(self._registry) <= 1:
            self._is_after_backward = False

    def _change(self, call: OpCall, *, is_within: bool) -> None:
        """Remember the result of a clamp, and what becomes of gradients after backward."""
        name = call.info.name
        if name in CLAMPS:
            self._clamp(call)
        elif name in SCALES:
            self._scale(call, is_within=is_within)
        elif not is_within and name in MAKES:
            self._make(call)
        elif not is_within and name == "copy_":
            self._copy(call)

    def _clamp(self, call: OpCall) -> None:
        limit, out = _limit(call), call.out
        if len(self._clamps) >= MAX_KEPT or not math.isfinite(limit):
            return
        if is_plain(out) and not is_in_file(clip_grad.__file__):
            self._clamps[out.data_ptr()] = _Clamp(Memory(out), limit, user_source())

    def _make(self, call: OpCall) -> None:
        out = call.out
        if not is_plain(out) or len(self._made) >= MAX_KEPT:
            return
        for given in tensors_among(call.args):
            if given.shape == out.shape and self._is_gradient(given):
                address = given.data_ptr()
                made = _Changed(Memory(out), address, norms_of([given])[0], user_source())
                self._made[out.data_ptr()] = made
                return

    def _scale(self, call: OpCall, *, is_within: bool) -> None:
        factor = call.args[1] if len(call.args) > 1 else None
        if isinstance(factor, torch.Tensor):
            if factor.numel() != 1 or not is_plain(factor):
                return
            factor = factor.detach().reshape(()).float()
        elif isinstance(factor, bool) or not isinstance(factor, (int, float)) or not factor:
            return
        # Another sensor receives those calls.
        if is_in_file(clip_grad.__file__):
            return
        # Within backward, where hooks do it, gradients are not all there yet.
        changed = [
            tensor
            for tensor in tensors_among(call.args[:1])
            if is_of_floats(tensor) and (is_within or self._is_gradient(tensor))
        ]
        # What is put together lies on one device. Of a model on several the first one tells as much.
        changed = [tensor for tensor in changed if tensor.device == changed[0].device]
        if isinstance(factor, torch.Tensor) and changed and factor.device != changed[0].device:
            return
        if changed:
            norms = norms_of(changed)
            before = norms * factor if "div" in call.info.name else norms / factor
            self._enter(changed, before.abs())

    def _copy(self, call: OpCall) -> None:
        into, source = call.args[:2]
        made = self._made.get(source.data_ptr()) if is_plain(source) else None
        if made is None or not self._is_gradient(into) or made.gradient != into.data_ptr():
            return
        if made.memory.is_of(source):
            self._enter([into], made.norm.reshape(1))

    def _enter(self, gradients: Sequence[Tensor], norms: Tensor) -> None:
        source = user_source()
        for gradient, norm in zip(gradients, norms.unbind(), strict=True):
            address = gradient.data_ptr()
            # Of what was changed before the norm of then is known.
            if address not in self._before and len(self._before) < MAX_KEPT:
                self._before[address] = _Changed(Memory(gradient), address, norm, source)

    # What they are used for.

    def _check(self, optimizer: Optimizer) -> None:
        """Look for limits in the gradients that are about to be unscaled."""
        if not (self._clamps or self._before or self._made):
            return
        gradients = [p.grad for p in parameters_of(optimizer) if is_of_floats(p.grad)]
        if not gradients:
            return
        # What is put together lies on one device. Of a model on several the first one tells as much.
        mine = {g.data_ptr(): g for g in gradients if g.device == gradients[0].device}
        self._check_clamps(optimizer, mine)
        self._check_norms(optimizer, mine)
        for kept in (self._clamps, self._made, self._before):
            for address in mine:
                kept.pop(address, None)

    def _check_clamps(self, optimizer: Optimizer, gradients: dict[int, Tensor]) -> None:
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
            (norms_of(some, math.inf) == _rounded(limit, dtype)).any()
            for (limit, dtype), some in limited.items()
        ]

        def judge(read: list[float]) -> None:
            if read[0] > 0.0:
                self._observe(ScaledClip(step, index, "clamp", limit, math.nan, scale, source))

        self._deferred.read(torch.stack(is_limited).any(), judge)

    @torch.no_grad()
    def _check_norms(self, optimizer: Optimizer, gradients: dict[int, Tensor]) -> None:
        # What was changed in place, and what was made of a gradient and has taken its place.
        found = {**self._made, **self._before}
        changed = [a for a, g in gradients.items() if a in found and found[a].memory.is_of(g)]
        if not changed:
            return
        index, step = self._registry.admit(optimizer), self._step
        source = found[changed[0]].source
        scale = scale_on_host(self._scaler)
        before = torch.stack([found[address].norm for address in changed])
        after = norms_of([gradients[address] for address in changed])

        def judge(read: list[float]) -> None:
            if all(map(math.isfinite, read)) and min(read) > 0.0:
                was, is_left = read
                self._observe(
                    RescaledGradients(step, index, was, is_left, len(changed), scale, source)
                )

        self._deferred.read(torch.linalg.vector_norm(torch.stack([before, after]), dim=1), judge)


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
