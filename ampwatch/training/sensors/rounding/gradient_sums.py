"""Gradients that are added up in half precision, over many backward passes or within one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import BackwardCFunction

from ampwatch.diagnosis.evidence.rounding import GradientSum, OpSite
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.hooks.sources import is_in_users_hook, user_source
from ampwatch.training.model.dtypes import name_of
from ampwatch.training.ops.events import OpSensor
from ampwatch.training.ops.operands import HALF
from ampwatch.training.ops.values import has_grad, is_plain, place_name, thinned
from ampwatch.training.private import current_node, sequence_number

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch import Tensor

    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op, OpPlace, OpsBegan, OpsEnded
    from ampwatch.training.ops.info import OpInfo

SAMPLED = 512
"""Elements of a sum that are added up beside it in float32."""

COMPARE_EVERY = 8
"""Additions after which the two sums are compared."""

MIN_ALIKE = 4
"""Elements of a tensor and a gradient that must be there, to tell whether one was made of the other."""

COSINE = 0.99
"""Cosine of the angle between a gradient and what was made of it, by a cast or a factor, at least."""

MAX_WITHIN = 64
"""Sums of custom functions that are followed at a time."""


class _Beside:
    """Some elements of a sum, added up beside it.

    Attributes:
        copy: The elements, as they have to be if nothing but additions has written to the sum.
        total: Their sum in float32.
        additions: Number of tensors in the sum. It is on the device: what begins a sum anew is not
            known elsewhere.
        seen: Tensors that it has or had, as far as was seen.
    """

    __slots__ = ("additions", "copy", "seen", "total")

    def __init__(self, now: Tensor, added: Tensor) -> None:
        self.seen = 2
        self.begin(now, added)

    def begin(self, now: Tensor, added: Tensor) -> None:
        """Begin the sum with what it is now."""
        self.copy = now.clone()
        self.total = now.float()
        # Unlike the addend, the sum has held something before: a gradient, as autograd adds nothing
        # to the first one.
        self.additions = 2.0 - (now == added).all().float()


class GradientSums(OpSensor):
    """Adds up in float32, for some elements, the gradients that are added up in half precision.

    By whom does not matter: by autograd in ``.grad``, by a hook of a parameter in a buffer of the
    program's, by a custom function that adds up within one call of its backward. What else writes
    to the sum begins it anew: decay, as of momentum, makes it no sum. So does an optimizer's step.

    Args:
        context: Shared parts of the training.

    Cost:
        Less than 1 us for an op that adds nothing in half precision; 25 us for a gradient that is
        added.
    """

    name = "gradient_sums"
    is_thread_safe = True

    def __init__(self, context: Context) -> None:
        self._names = context.names
        self._deferred = context.deferred
        self._observe = context.observe
        self._step = 0
        self._known: dict[int, str] = {}
        self._sums: dict[Hashable, _Beside] = {}
        self._within: dict[Hashable, _Beside] = {}
        self._newest: dict[_Beside, GradientSum] = {}

    def ops_began(self, event: OpsBegan) -> None:
        """Begin an iteration, and with it every sum."""
        self._step = event.step
        self._deferred.poll()
        self._forget()
        self._known = {id(p): name for name, p in self._names.parameters()}

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:
        """Whether an op adds in backward."""
        return info.name in ("add", "add_") and in_backward

    def glance(self, call: OpCall) -> bool:
        """Whether an op adds nothing in half precision, or makes a new tensor as autograd does."""
        if getattr(call.out, "dtype", None) not in HALF:
            return True
        return call.info.name == "add" and not isinstance(current_node(), BackwardCFunction)

    def op(self, event: Op) -> None:
        """Add up what is added to a sum of gradients."""
        call, place = event
        if place.phase is not Phase.BACKWARD or call.info.name not in ("add", "add_"):
            return
        before, addend = call.args[:2]
        if getattr(call.out, "dtype", None) not in HALF or not (
            is_plain(before) and is_plain(addend)
        ):
            return
        if before.device != addend.device:
            return
        node = current_node()
        if isinstance(node, BackwardCFunction):
            self._add_within(call, place, node)
        elif call.info.name == "add_":
            self._add_to_gradient(call, getattr(node, "variable", None))

    def ops_ended(self, _event: OpsEnded) -> None:
        """Report the sums of the iteration, in the order of the parameters."""
        self._deferred.poll()
        newest = list(self._newest.values())
        self._newest.clear()
        order = {f"param:{name}": place for place, name in enumerate(self._known.values())}
        for summed in sorted(newest, key=lambda s: order.get(s.site.where, len(order))):
            self._observe(summed)
        self._forget()
        self._known.clear()

    def _forget(self) -> None:
        self._sums.clear()
        self._within.clear()

    def _add_to_gradient(self, call: OpCall, variable: Any) -> None:
        """Follow an addition of the node that accumulates the gradient of a leaf, or of its hooks."""
        name = self._known.get(id(variable))  # no other node has a variable
        into, addend = call.args[:2]
        if name is None or into.numel() != variable.numel() or addend.numel() != into.numel():
            return
        address = into.data_ptr()
        if is_plain(variable) and address == variable.data_ptr():
            return  # an update
        gradient = variable.grad
        is_buffer = is_plain(gradient) and address != gradient.data_ptr()
        made_of = None
        if is_buffer and addend.data_ptr() != gradient.data_ptr():
            # An average of weights in a hook is no sum of gradients.
            if gradient.device == addend.device and addend.numel() < MIN_ALIKE:
                return
            made_of = _is_made_of(addend, gradient)
        key = name, address
        beside = self._add(self._sums.get(key), call, made_of)
        self._sums[key] = beside
        if beside.seen % COMPARE_EVERY == 0:
            self._compare(beside, call, f"param:{name}")

    def _add_within(self, call: OpCall, place: OpPlace, node: Any) -> None:
        """Follow an addition in the backward of a custom function."""
        before, addend = call.args[:2]
        # A forward pass that is repeated there is no sum of gradients, nor is what code generates.
        if place.is_inside or has_grad(before, addend) or addend.shape != call.out.shape:
            return
        if before.shape != call.out.shape or not is_in_users_hook():
            return
        number = sequence_number(node)
        beside = self._within.pop((number, before.data_ptr()), None)
        beside = self._add(beside, call)
        while len(self._within) >= MAX_WITHIN:
            del self._within[next(iter(self._within))]  # the one that was added to longest ago
        self._within[number, call.out.data_ptr()] = beside
        if beside.seen % COMPARE_EVERY == 0:
            self._compare(beside, call, place_name(place))

    def _add(self, beside: _Beside | None, call: OpCall, made_of: Tensor | None = None) -> _Beside:
        """Add up beside a sum what was added to it.

        Args:
            beside: What is known of the sum; ``None`` before its first addition.
            call: The addition.
            made_of: Whether what is added was made of a gradient, on its device; ``None`` if it was.
        """
        now, added = _elements(call)
        if beside is None:
            return _Beside(now, added)
        alpha = call.kwargs.get("alpha", 1)
        total, additions = beside.total, beside.additions
        # Decided on the device, as reading it would be a sync.
        goes_on = (beside.copy.add_(added, alpha=alpha) == now).all()
        if made_of is not None:
            goes_on = goes_on & made_of
        beside.begin(now, added)
        beside.total = torch.where(goes_on, total.add(added.float(), alpha=alpha), beside.total)
        beside.additions = torch.where(goes_on, additions + 1.0, beside.additions)
        beside.seen += 1
        return beside

    def _compare(self, beside: _Beside, call: OpCall, where: str) -> None:
        half, addend = _elements(call)
        now, added = half.float(), addend.float() * call.kwargs.get("alpha", 1)
        # Where nothing has changed, adding once more changes nothing either.
        lost = (now + added).to(half.dtype).float() == now
        nonzero = added != 0
        error = (now - beside.total).norm() / beside.total.norm().clamp(min=1e-30)
        lost_and_nonzero = (lost & nonzero).sum(), nonzero.sum()
        columns = error, *lost_and_nonzero, now.isfinite().all(), beside.additions
        site = OpSite(self._step, where, call.info.name, "backward", user_source())
        dtype = name_of(half.dtype)

        def judge(read: list[float]) -> None:
            error, lost, nonzero, is_finite, additions = read
            if is_finite and nonzero:
                share = lost / nonzero
                self._newest[beside] = GradientSum(site, dtype, int(additions), error, share)

        self._deferred.read(torch.stack([c.to(torch.float32) for c in columns]), judge)


def _elements(call: OpCall) -> tuple[Tensor, Tensor]:
    """Return some elements of a sum, and those that were added to them."""
    out = call.out.detach()
    return thinned(out, SAMPLED), thinned(call.args[1].detach().expand(out.shape), SAMPLED)


def _is_made_of(tensor: Tensor, gradient: Tensor) -> Tensor | None:
    """Return whether a tensor is a gradient in another dtype or times a factor, on their device."""
    if tensor.device != gradient.device:
        return None
    a = thinned(tensor.detach(), SAMPLED).float()
    b = thinned(gradient.detach().reshape(tensor.shape), SAMPLED).float()
    is_along: Tensor = (a * b).sum().abs() >= COSINE * a.norm() * b.norm()
    return is_along
