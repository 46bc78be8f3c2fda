"""Running sums in half precision that stop growing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ampwatch.diagnosis.evidence.rounding import OpSite, StuckSum, SumSeen
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.hooks.sources import is_in_optimizer, user_source
from ampwatch.training.model.dtypes import name_of
from ampwatch.training.ops.events import OpSensor
from ampwatch.training.ops.operands import HALF
from ampwatch.training.ops.storage import Memory
from ampwatch.training.ops.values import has_grad, is_plain, names_by_address, place_name, thinned

if TYPE_CHECKING:
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import Op, OpPlace, OpsBegan, OpsEnded
    from ampwatch.training.ops.info import OpInfo

LARGEST_SUM = 1024
"""Elements of a running sum outside of modules; a longer tensor is something else."""

LARGEST_IN_PLACE = 2**20
"""Elements of one that is added to in place, as counts of many classes or words are."""

SAMPLED = 1024
"""Elements of a running sum that are compared."""

LARGEST_INSIDE = 64
"""Elements of a running sum inside of modules, which is added to in place."""

MAX_SUMS = 64
"""Sums that are followed at a time."""


class _Sum:
    """A running sum.

    Attributes:
        memory: Where the sum lies now.
        additions: Additions in a row that had no effect.
        grown: Additions that had one.
        source: ``file:line`` that adds.
    """

    __slots__ = ("additions", "grown", "memory", "source")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.memory = Memory(tensor)
        self.additions = 0
        self.grown = 0
        self.source = ""


class MetricSums(OpSensor):
    """Follows small tensors that something is added to again and again without a gradient.

    A sum is known by its tensor; where each addition makes a new one, the next addition adds to
    that. Inside of modules only scalars, and tensors that are added to in place, are sums: others
    are more likely a residual stream.

    Args:
        context: Shared parts of the training.

    Cost:
        Less than 1 us for an op that adds nothing in half precision; 20 us for one that does
        without gradients.
    """

    name = "metric_sums"
    is_thread_safe = True

    def __init__(self, context: Context) -> None:
        self._deferred = context.deferred
        self._observe = context.observe
        self._step = 0
        self._names = context.names
        # Weights that are updated by hand are no sums.
        self._parameters: set[int] = set()
        self._buffers: dict[int, str] = {}
        self._sums: dict[int, _Sum] = {}

    def ops_began(self, event: OpsBegan) -> None:
        """Begin an iteration; sums live longer than iterations."""
        self._step = event.step
        self._parameters = set(names_by_address(self._names.parameters()))
        self._buffers = names_by_address(self._names.buffers())
        self._deferred.poll()

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:
        """Whether an op adds in forward, or writes in place."""
        return info.name.endswith("_") or (info.name == "add" and not in_backward)

    def glance(self, call: OpCall) -> bool:
        """Whether an op adds nothing in half precision, and no sum is there to be forgotten."""
        if call.info.name in ("add", "add_"):
            return getattr(call.out, "dtype", None) not in HALF
        return not self._sums

    def op(self, event: Op) -> None:
        """Follow an addition, and forget a sum that is written to otherwise."""
        call, place = event
        name = call.info.name
        if name not in ("add_", "add"):
            # A tensor that is scaled, filled or overwritten is no sum, or begins anew.
            if self._sums and name[-1:] == "_" and call.args and not _is_itself(call):
                self._forget(call.args[0])
            return
        if place.phase is Phase.BACKWARD:
            return
        out = call.out
        in_place = name == "add_"
        largest = LARGEST_IN_PLACE if in_place else LARGEST_SUM
        if getattr(out, "dtype", None) not in HALF or out.numel() > largest:
            return
        if place.is_inside and out.numel() > (LARGEST_INSIDE if in_place else 1):
            return
        if len(call.args) > 1 and is_plain(out) and is_plain(call.args[0]):
            self._add(call, place, in_place=in_place)

    def ops_ended(self, _event: OpsEnded) -> None:
        """Take in the values that have reached the host."""
        self._deferred.poll()
        self._parameters.clear()
        self._buffers.clear()

    def _add(self, call: OpCall, place: OpPlace, *, in_place: bool) -> None:
        out = call.out
        addend = call.args[1]
        before = call.args[0]
        if (
            has_grad(before, addend)
            or before.requires_grad
            or before.data_ptr() in self._parameters
        ):
            return
        known = self._known(before)
        if known is None and not in_place and isinstance(addend, torch.Tensor):
            known = self._known(addend)  # ``loss + total``
            if known is not None:
                before, addend = addend, before
        if known is None:
            self._remember(out)
            return
        if out.numel() > LARGEST_SUM and not known.source:
            # Tensors as large are written to in place for many reasons, but seldom twice.
            self._observe(SumSeen(self._step))
        if not in_place:
            self._sums.pop(before.data_ptr(), None)
            known.memory = Memory(out)
            self._sums[out.data_ptr()] = known
        self._compare(call, place, known, addend)

    def _known(self, tensor: torch.Tensor) -> _Sum | None:
        known = self._sums.get(tensor.data_ptr()) if is_plain(tensor) else None
        return known if known is not None and known.memory.is_of(tensor) else None

    def _forget(self, written: Any) -> None:
        for tensor in written if isinstance(written, (list, tuple)) else (written,):
            if is_plain(tensor):
                self._sums.pop(tensor.data_ptr(), None)

    def _remember(self, out: torch.Tensor) -> None:
        if len(self._sums) >= MAX_SUMS:
            self._sums = {key: s for key, s in list(self._sums.items()) if s.memory.is_alive}
        if len(self._sums) < MAX_SUMS and not is_in_optimizer():
            self._sums[out.data_ptr()] = _Sum(out)
            if out.numel() <= LARGEST_SUM:
                self._observe(SumSeen(self._step))

    def _compare(self, call: OpCall, place: OpPlace, known: _Sum, addend: Any) -> None:
        if not isinstance(addend, (torch.Tensor, int, float)) or is_in_optimizer():
            return
        out = call.out.detach()
        where = place_name(place, self._buffers.get(out.data_ptr()))
        alpha = call.kwargs.get("alpha", 1)
        if isinstance(addend, torch.Tensor) and addend.device != out.device:
            # A scalar in host memory can be added to a tensor on a device; reading it is no sync.
            addend = (
                addend.detach().tolist()
                if addend.ndim == 0 and addend.device.type == "cpu"
                else None
            )
        if isinstance(addend, torch.Tensor):
            addend = thinned(addend.detach().expand(out.shape), SAMPLED)
            out = thinned(out, SAMPLED)
            given = addend * alpha
        elif isinstance(addend, (int, float)):
            # Filled by a kernel: ``torch.as_tensor`` would copy from the host, and wait.
            out = thinned(out, SAMPLED)
            given = torch.full_like(out, addend * alpha, dtype=torch.float32)
        else:
            return
        # Where nothing has changed, adding once more changes nothing either.
        same = torch.add(out, addend, alpha=alpha).to(out.dtype) == out
        added = (given != 0) & given.isfinite() & out.isfinite() & (out != 0)
        columns = added.sum(), (added & same).sum(), out.reshape(-1)[0], given.reshape(-1)[0]
        phase = Phase.EVAL if place.phase is Phase.EVAL else Phase.FORWARD
        known.source = known.source or user_source()
        site = OpSite(self._step, where, call.info.name, phase.label, known.source)
        dtype = name_of(out.dtype)

        def judge(read: list[float]) -> None:
            added, stuck, total, value = read
            if not added:
                return
            if stuck < added:
                known.additions = 0
                known.grown += 1
                return
            known.additions += 1
            self._observe(StuckSum(site, dtype, known.additions, known.grown, total, value))

        self._deferred.read(torch.stack([c.to(torch.float32) for c in columns]), judge)


def _is_itself(call: OpCall) -> bool:
    """Whether something is copied to where it lies, as ``counts[0] += 1`` does in the end."""
    if call.info.name != "copy_" or not all(map(is_plain, call.args[:2])):
        return False
    into, source = call.args[:2]
    return bool(into.data_ptr() == source.data_ptr() and into.shape == source.shape)
