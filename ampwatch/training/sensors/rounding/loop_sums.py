"""Sums in half precision that gradients flow through, added up in a loop."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from ampwatch.diagnosis.evidence.rounding import LoopSum, OpSite
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.hooks.sources import user_source
from ampwatch.training.model.dtypes import name_of
from ampwatch.training.ops.events import OpSensor
from ampwatch.training.ops.operands import HALF
from ampwatch.training.ops.values import has_grad, is_plain, place_name, thinned

if TYPE_CHECKING:
    from torch import Tensor

    from ampwatch.training.hooks.events import TensorsSwapping
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op, OpPlace, OpsBegan, OpsEnded
    from ampwatch.training.ops.info import OpInfo

SAMPLED = 256
"""Elements of a sum that are added up beside it in float32."""

COMPARE_EVERY = 16
"""Additions after which the two sums are compared."""

MAX_SUMS = 64
"""Sums that are followed at a time."""


class _Sum:
    """A sum, and beside it some of its elements in float32.

    Attributes:
        tensor: Tensor that holds the sum now.
        module: Module that adds.
        exact: Sum of some of the elements; ``None`` before the second addition.
        additions: Tensors that were added.
    """

    __slots__ = ("additions", "exact", "module", "tensor")

    def __init__(self, tensor: Tensor, module: str) -> None:
        self.tensor = weakref.ref(tensor)
        self.module = module
        self.exact: Tensor | None = None
        self.additions = 1


class LoopSums(OpSensor):
    """Adds up in float32, for some elements, what one module adds up in half precision.

    Each addition makes a new tensor, or writes to the old one; the next one adds to that. Additions
    of other modules begin new sums: each block of a residual stream is a module of its own.

    Args:
        context: Shared parts of the training.

    Cost:
        Less than 1 us for an op that adds nothing in half precision; 2 us for one that does, and
        15 us for one that adds to a sum.
    """

    name = "loop_sums"
    is_thread_safe = True

    def __init__(self, context: Context) -> None:
        self._deferred = context.deferred
        self._observe = context.observe
        self._step = 0
        self._sums: dict[int, _Sum] = {}

    def ops_began(self, event: OpsBegan) -> None:
        """Begin an iteration, and with it every sum."""
        self._step = event.step
        self._deferred.poll()
        self._sums.clear()

    def tensors_swapping(self, _event: TensorsSwapping) -> None:
        """Refer to no tensor."""
        self._sums.clear()

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:
        """Whether an op adds."""
        return info.name in ("add", "add_") and not in_backward

    def glance(self, call: OpCall) -> bool:
        """Whether an op adds nothing in half precision."""
        return getattr(call.out, "dtype", None) not in HALF

    def op(self, event: Op) -> None:
        """Follow an addition that gradients flow through."""
        call, place = event
        if call.info.name not in ("add", "add_") or place.phase is not Phase.FORWARD:
            return
        out = call.out
        if getattr(out, "dtype", None) not in HALF or len(call.args) < 2:
            return
        before, addend = call.args[:2]
        if is_plain(before) and is_plain(addend) and is_plain(out) and has_grad(before, addend):
            self._add(call, place, before, addend)

    def ops_ended(self, _event: OpsEnded) -> None:
        """Take in the values that have reached the host, and forget every sum."""
        self._deferred.poll()
        self._sums.clear()

    def _add(self, call: OpCall, place: OpPlace, before: Tensor, addend: Tensor) -> None:
        out = call.out
        known = self._known(before, place)
        if known is None and call.info.name == "add":
            known = self._known(addend, place)  # ``term + total``
            if known is not None:
                before, addend = addend, before
        if known is None or before.shape != out.shape or call.kwargs.get("alpha", 1) != 1:
            self._enter(out, _Sum(out, place.module))
            return
        self._sums.pop(id(before), None)
        given = thinned(addend.detach().expand(out.shape), SAMPLED).float()
        now = thinned(out.detach(), SAMPLED).float()
        if known.exact is None:
            # Written in place the sum of before is gone; what one addition rounds is no matter.
            same = call.info.name == "add_"
            known.exact = now if same else thinned(before.detach(), SAMPLED).float() + given
        else:
            known.exact = known.exact + given
        known.tensor = weakref.ref(out)
        known.additions += 1
        self._enter(out, known)
        if known.additions % COMPARE_EVERY == 0:
            self._compare(known, known.exact, now, self._site(call, place))

    def _known(self, tensor: Tensor, place: OpPlace) -> _Sum | None:
        known = self._sums.get(id(tensor))
        is_it = known is not None and known.tensor() is tensor and known.module == place.module
        return known if is_it else None

    def _enter(self, out: Tensor, known: _Sum) -> None:
        while len(self._sums) >= MAX_SUMS:
            del self._sums[next(iter(self._sums))]  # the one that was added to longest ago
        self._sums[id(out)] = known

    def _site(self, call: OpCall, place: OpPlace) -> OpSite:
        where = place_name(place)
        return OpSite(self._step, where, call.info.name, place.phase.label, user_source())

    def _compare(self, known: _Sum, exact: Tensor, now: Tensor, site: OpSite) -> None:
        dtype = name_of(known.tensor().dtype)  # type: ignore[union-attr] # entered just now
        additions = known.additions
        columns = (now - exact).norm() / exact.norm(), now.norm(), exact.norm()

        def judge(read: list[float]) -> None:
            error, total, wanted = read
            # Not finite is another matter, and so is a sum of nothing.
            if 0.0 < error < float("inf") and wanted > 0.0:
                self._observe(LoopSum(site, dtype, additions, error, total / wanted))

        self._deferred.read(torch.stack(columns), judge)
