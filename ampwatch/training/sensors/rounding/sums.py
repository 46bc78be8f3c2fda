"""Sums in half precision: running ones, those of a loop, and those of gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ampwatch.diagnosis.evidence.rounding import Stuck, SumSeen, What
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.hooks.sources import is_in_optimizer, user_source
from ampwatch.training.kernels.admission import is_plain
from ampwatch.training.kernels.dtypes import HALF, name_of
from ampwatch.training.ops.operands import has_grad, names_by_address, thinned
from ampwatch.training.private import current_node
from ampwatch.training.sensors.rounding.shadow import (
    RoundingSensor,
    Shadow,
    Shadows,
    added_of,
    is_stuck,
    now_of,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ampwatch.diagnosis.evidence.rounding import OpSite
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op
    from ampwatch.training.ops.info import OpInfo

ADDS = ("add", "add_")

OF_RUNNING, OF_LOOP, OF_GRADIENT = 1024, 256, 512
"""Elements that are followed of a running sum, of one of a loop, and of one of gradients."""

LOOP_EVERY, GRADIENT_EVERY = 16, 8
"""Additions after which a sum of a loop, and one of gradients, is compared with that in float32."""

MAX_SUMS = 64
"""Sums of each sort that are followed at a time, besides gradients of parameters."""

LARGEST_SUM, LARGEST_IN_PLACE = 1024, 2**20
"""Elements of a running sum outside of modules; and of one that is added to in place, as counts of many words are."""

LARGEST_INSIDE = 64
"""Elements of a running sum inside of modules, which is added to in place."""


class Sums(RoundingSensor):
    """Follows what is added up in half precision by ``a + b``, ``a += b`` and autograd.

    ===========  ========================================  ==============  ==============================
    sum          what is added                             begins          compared
    ===========  ========================================  ==============  ==============================
    running      anything without gradients, in forward    once            with itself, at each addition
    of a loop    by one module, with gradients             each iteration  with that in float32
    of a leaf    its gradient, by autograd                 each iteration  with that in float32
    ===========  ========================================  ==============  ==============================

    A running sum is small, and inside of modules a scalar or added to in place: others are more likely a residual
    stream, of which each block is a module of its own. What writes to a running sum otherwise ends it. A sum of
    gradients begins anew where anything else has written to it: decay, as of momentum, makes it no sum.

    Cost:
        Less than 1 us for an op that adds nothing in half precision; 2 us for one that begins a sum, 15 to 25 us for
        an addition to one.
    """

    name = "sums"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        # Weights that are updated by hand are no sums.
        self._weights: set[int] = set()
        self._parameters: dict[int, str] = {}
        self._running = Shadows(MAX_SUMS)
        self._loops = Shadows(MAX_SUMS, drops=True)
        self._gradients: dict[tuple[str, int], Shadow] = {}
        self._newest: dict[Shadow, Stuck] = {}

    def _begin(self) -> None:
        parameters = list(self._names.parameters())
        self._weights = set(names_by_address(parameters))
        self._parameters = {id(p): name for name, p in parameters}

    def _finish(self) -> None:
        """Report the sums of gradients, in the order of the parameters."""
        newest = list(self._newest.values())
        self._newest.clear()
        order = {f"param:{name}": place for place, name in enumerate(self._parameters.values())}
        for summed in sorted(newest, key=lambda s: order.get(s.site.where, len(order))):
            self._observe(summed)

    def _forget(self) -> None:
        self._weights.clear()
        self._parameters.clear()
        self._loops.known.clear()
        self._gradients.clear()

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:  # noqa: ARG002 - in both
        """Whether an op adds, or writes in place."""
        return info.name == "add" or info.name.endswith("_")

    def prefilter(self, call: OpCall) -> bool:
        """Whether an op adds nothing in half precision, and no running sum is there to be ended."""
        name = call.info.name
        if name not in ADDS:
            return not self._running.known
        if getattr(call.out, "dtype", None) not in HALF:
            return True
        # Autograd makes new tensors as well.
        return name == "add" and current_node() is not None

    def op(self, event: Op) -> None:
        """Follow an addition, and end a running sum that is written to otherwise."""
        call, place = event
        if call.info.name not in ADDS:
            self._end(call)
            return
        if getattr(call.out, "dtype", None) not in HALF or len(call.args) < 2:
            return
        before, addend = call.args[:2]
        if place.phase is Phase.BACKWARD:
            if is_plain(before) and is_plain(addend) and before.device == addend.device:
                self._add_in_backward(event)
        elif not is_plain(before) or not is_plain(call.out):
            return
        elif not has_grad(before, addend):
            self._add_to_running(event)
        elif place.phase is Phase.FORWARD and is_plain(addend):
            self._add_in_loop(event)

    # Running sums.

    def _end(self, call: OpCall) -> None:
        """End the running sums that are scaled, filled or overwritten."""
        written = call.args[0] if call.args and self._running.known else ()
        if call.info.name[-1:] == "_" and not _is_itself(call):
            for tensor in written if isinstance(written, (list, tuple)) else (written,):
                if is_plain(tensor):
                    self._running.known.pop(("", tensor.data_ptr()), None)

    def _add_to_running(self, op: Op) -> None:
        call, place = op
        out, in_place = call.out, call.info.name == "add_"
        largest = LARGEST_IN_PLACE if in_place else LARGEST_SUM
        if place.is_inside:
            largest = LARGEST_INSIDE if in_place else 1
        before = call.args[0]
        if out.numel() > largest or before.requires_grad or before.data_ptr() in self._weights:
            return
        known, _, addend = self._running.of_sum(call)
        is_large = out.numel() > LARGEST_SUM
        if known is None:
            if not is_in_optimizer() and self._running.put(out, Shadow()) and not is_large:
                self._observe(SumSeen(self._step))
            return
        if is_large and not known.source:
            # Tensors as large are written to in place for many reasons, but seldom twice.
            self._observe(SumSeen(self._step))
        self._running.put(out, known)
        added = added_of(addend, out, OF_RUNNING)
        if added is not None and not is_in_optimizer():
            known.source = known.source or user_source()
            site = self._site(op, out, source=known.source)
            self._compare_running(known, out, added, call.kwargs.get("alpha", 1), site)

    def _compare_running(
        self, known: Shadow, out: Tensor, added: Tensor, alpha: float, site: OpSite
    ) -> None:
        now, value, dtype = thinned(out.detach(), OF_RUNNING), added * alpha, name_of(out.dtype)
        counts = (value != 0) & value.isfinite() & now.isfinite() & (now != 0)
        stuck = counts & is_stuck(now, added, alpha)

        def judge(read: list[float]) -> None:
            added, stuck, total, value = read
            if added and stuck < added:
                known.additions = 0
                known.grown += 1
            elif added:
                known.additions += 1
                found = Stuck(site, What.RUNNING_SUM, dtype, known.additions, total=total)
                self._observe(found._replace(grown=known.grown, addend=value))

        self._read(judge, counts.sum(), stuck.sum(), now[0], value[0])

    # Sums of loops.

    def _add_in_loop(self, op: Op) -> None:
        call, place = op
        out = call.out
        known, before, addend = self._loops.of_sum(call, place.module)
        if known is None or before.shape != out.shape or call.kwargs.get("alpha", 1) != 1:
            self._loops.put(out, Shadow(), place.module)
            return
        self._loops.put(out, known, place.module)
        now, added = now_of(out, OF_LOOP), added_of(addend, out, OF_LOOP)
        if added is None:
            return
        if known.exact is None:
            # Written in place the sum of before is gone; what one addition rounds is no matter.
            first = now if call.info.name == "add_" else now_of(before, OF_LOOP).float() + added
            known.exact, known.seen = first.float(), 2
            return
        known.add(now, added)
        if known.seen % LOOP_EVERY:
            return
        site, dtype, additions = self._site(op, out), name_of(out.dtype), known.seen

        def judge(read: list[float]) -> None:
            error, total, wanted = read
            # Not finite is another matter, and so is a sum of nothing.
            if 0.0 < error < float("inf") and wanted > 0.0:
                found = Stuck(site, What.LOOP_SUM, dtype, additions, error=error)
                self._observe(found._replace(total=total / wanted))

        self._read(judge, known.error, now.float().norm(), known.exact.norm())

    # Sums of gradients.

    def _add_in_backward(self, op: Op) -> None:
        call = op.call
        before, addend = call.args[:2]
        variable: Any = getattr(current_node(), "variable", None)
        if call.info.name != "add_" or id(variable) not in self._parameters:
            return
        if not before.numel() == addend.numel() == variable.numel():
            return
        if is_plain(gradient := variable.grad) and before.data_ptr() == gradient.data_ptr():
            self._add_gradient(self._parameters[id(variable)], op)

    def _add_gradient(self, owner: str, op: Op) -> None:
        """Add up beside the gradient of a parameter what was added to it."""
        call = op.call
        out = call.out
        now, added = now_of(out, OF_GRADIENT), added_of(call.args[1], out, OF_GRADIENT)
        if added is None:
            return
        # Unlike the addend, the sum has held something before: a gradient, as autograd adds nothing to the first one.
        additions = 2.0 - (now == added).all().float()
        known = self._gradients.pop((owner, call.args[0].data_ptr()), None)
        if known is None:
            known = Shadow(now, now.float(), additions)
            known.seen = 2
        else:
            # Decided on the device, as reading it would be a sync.
            is_other = (torch.add(known.now, added).to(now.dtype) != now).any()
            known.add(now, added)
            known.begin(is_other, additions)
        self._gradients[owner, out.data_ptr()] = known
        if known.seen % GRADIENT_EVERY:
            return
        site = self._site(op, out, f"param:{owner}")
        dtype, nonzero = name_of(out.dtype), added != 0
        stuck = nonzero & is_stuck(now, added)

        def judge(read: list[float]) -> None:
            error, stuck, added, is_finite, additions = read
            if is_finite and added:
                found = Stuck(
                    site, What.GRADIENT_SUM, dtype, int(additions), stuck / added, error=error
                )
                self._newest[known] = found

        numbers = known.error, stuck.sum(), nonzero.sum(), now.isfinite().all(), known.additions
        self._read(judge, *numbers)


def _is_itself(call: OpCall) -> bool:
    """Whether something is copied to where it lies, as ``counts[0] += 1`` does in the end."""
    if call.info.name != "copy_" or not all(map(is_plain, call.args[:2])):
        return False
    into, source = call.args[:2]
    return bool(into.data_ptr() == source.data_ptr() and into.shape == source.shape)
