"""Gradients of many backward passes that are added up in half precision."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from ampwatch.diagnosis.evidence.rounding import GradientSum, OpSite
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.hooks.sources import user_source
from ampwatch.training.model.dtypes import name_of
from ampwatch.training.ops.events import OpSensor
from ampwatch.training.ops.operands import HALF
from ampwatch.training.ops.values import is_plain, thinned
from ampwatch.training.private import current_node

if TYPE_CHECKING:
    from ampwatch.training.hooks.events import TensorsSwapping
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op, OpsBegan, OpsEnded
    from ampwatch.training.ops.info import OpInfo

SAMPLED = 1024
"""Elements of a gradient that are added up beside it in float32."""

COMPARE_EVERY = 8
"""Additions after which the two sums are compared."""


class _Beside:
    """A float32 sum beside a gradient.

    Attributes:
        gradient: The gradient.
        total: Sum of some of the elements.
        additions: Number of gradients in the sum.
    """

    __slots__ = ("additions", "gradient", "total")

    def __init__(self, gradient: torch.Tensor, total: torch.Tensor) -> None:
        self.gradient = weakref.ref(gradient)
        self.total = total
        self.additions = 2


class GradientSums(OpSensor):
    """Adds up in float32, for some elements, the gradients that autograd adds up in half precision.

    Only gradients of one iteration count: an optimizer's step begins a new sum.

    Args:
        context: Shared parts of the training.

    Cost:
        Less than 1 us for an op outside of backward; 15 us for a gradient that is added.
    """

    name = "gradient_sums"
    is_thread_safe = True

    def __init__(self, context: Context) -> None:
        self._names = context.names
        self._deferred = context.deferred
        self._observe = context.observe
        self._step = 0
        self._known: dict[int, str] = {}
        self._sums: dict[int, _Beside] = {}
        self._newest: dict[str, GradientSum] = {}

    def ops_began(self, event: OpsBegan) -> None:
        """Begin an iteration, and with it every sum."""
        self._step = event.step
        self._deferred.poll()
        self._sums.clear()
        self._known = {id(p): name for name, p in self._names.parameters() if p.dtype in HALF}

    def tensors_swapping(self, _event: TensorsSwapping) -> None:
        """Refer to no gradient."""
        self._sums.clear()

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:
        """Whether an op adds in place, as autograd does."""
        return info.name == "add_" and in_backward

    def glance(self, call: OpCall) -> bool:
        """Whether an op adds nothing in half precision."""
        return not self._known or call.args[0].dtype not in HALF

    def op(self, event: Op) -> None:
        """Add up a gradient that autograd adds to the one of a parameter."""
        call, place = event
        if place.phase is not Phase.BACKWARD or call.info.name != "add_" or not self._known:
            return
        gradient = call.args[0]
        if gradient.dtype not in HALF:
            return
        # Only the node that accumulates the gradient of a leaf has a ``variable``.
        node = current_node()
        name = self._known.get(id(getattr(node, "variable", None)))
        if name is not None and is_plain(gradient) and is_plain(call.args[1]):
            self._add(name, gradient, call.args[1])

    def ops_ended(self, _event: OpsEnded) -> None:
        """Report the sums of the iteration, in the order of the parameters."""
        self._deferred.poll()
        newest = self._newest
        self._newest = {}
        for name in self._known.values():
            if name in newest:
                self._observe(newest[name])
        self._sums.clear()
        self._known.clear()

    def _add(self, name: str, gradient: torch.Tensor, addend: torch.Tensor) -> None:
        now = thinned(gradient.detach(), SAMPLED).float()
        added = thinned(addend.detach(), SAMPLED).float()
        beside = self._sums.get(id(gradient))
        if beside is None or beside.gradient() is not gradient:
            self._sums[id(gradient)] = _Beside(gradient, now)
            return
        beside.additions += 1
        # Equal to the addend, the gradient was zero before: it was set to zero, and begins anew.
        # Decided on the device, as reading it would be a sync.
        begins = (now == added).all()
        beside.total = torch.where(begins, added, beside.total + added)
        if beside.additions % COMPARE_EVERY:
            return
        # Where nothing has changed, adding once more changes nothing either.
        lost = (now + added).to(gradient.dtype).float() == now
        nonzero = added != 0
        error = (now - beside.total).norm() / beside.total.norm().clamp(min=1e-30)
        columns = error, (lost & nonzero).sum(), nonzero.sum(), now.isfinite().all()
        site = OpSite(self._step, f"param:{name}", "add_", "backward", user_source())
        dtype = name_of(gradient.dtype)
        additions = beside.additions

        def judge(read: list[float]) -> None:
            error, lost, nonzero, is_finite = read
            if is_finite and nonzero:
                self._newest[name] = GradientSum(site, dtype, additions, error, lost / nonzero)

        self._deferred.read(torch.stack([c.to(torch.float32) for c in columns]), judge)
