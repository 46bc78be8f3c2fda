"""Ops for which the host waits until the device has done all that it was given."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from ampwatch.diagnosis.evidence.ops import HostWaits, WaitingLine
from ampwatch.training.devices import HOST
from ampwatch.training.hooks.sources import user_source
from ampwatch.training.ops.events import OpSensor

if TYPE_CHECKING:
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import HostRead, Op, OpsBegan, OpsEnded
    from ampwatch.training.ops.info import OpInfo

ITEM, TO_HOST, TO_DEVICE = "item", "copy to the host", "copy to the device"

SIZED_BY_VALUES = frozenset(
    {"nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive"}
    | {"bincount", "equal", "histc"}
)
"""Ops whose result has a size, or is a number of Python, that only the values of their inputs tell."""

INDEXED = frozenset({"index", "index_put", "index_put_", "_index_put_impl_"})
"""Ops that wait where they are given a mask: it is made indices of, by ``nonzero``."""

COPIES = frozenset({"_to_copy", "copy_"})

MAX_LINES = 64
"""Lines of an iteration that are distinguished."""


class WaitSensor(OpSensor):
    """Notes at which lines the host waits for an accelerator, in iterations whose ops are observed.

    The scaler of PyTorch reads once in each step whether gradients are finite, which is left out: it
    is how a step is skipped.

    Cost:
        Less than 1 us for an op that does not wait; 5 us for one that does.
    """

    name = "waits"
    is_thread_safe = True

    def __init__(self, context: Context) -> None:
        self._bus = context.bus
        self._home = context.home
        self._observe = context.observe
        self._step = -1
        self._lines: Counter[WaitingLine] = Counter()

    def ops_began(self, event: OpsBegan) -> None:
        """Begin an iteration."""
        self._step = event.step
        self._lines.clear()

    def wants_op(self, info: OpInfo, *, in_backward: bool) -> bool:
        """Whether an op may wait."""
        return not in_backward and info.name in SIZED_BY_VALUES | INDEXED | COPIES

    def prefilter(self, call: OpCall) -> bool:
        """Whether an op does not wait."""
        return not _waits(call)

    def op(self, event: Op) -> None:
        """Note an op that waits."""
        if what := _waits(event.call):
            self._note(what)

    def host_read(self, event: HostRead) -> None:
        """Note a number that was read, unless the scaler has."""
        is_of_scaler = self._bus.is_stepping and not self._bus.is_optimizer_stepping
        if not is_of_scaler and _is_on_device(event.call.args[0]):
            self._note(ITEM)

    def ops_ended(self, _event: OpsEnded) -> None:
        """Hand on the waits of the iteration, if it was on an accelerator."""
        device = self._home.device
        if self._step >= 0 and device is not None and device.type != HOST:
            self._observe(HostWaits(self._step, dict(self._lines)))
        self._step = -1
        self._lines.clear()

    def _note(self, what: str) -> None:
        line = WaitingLine(user_source(), what)
        if line in self._lines or len(self._lines) < MAX_LINES:
            self._lines[line] += 1


def _waits(call: OpCall) -> str:
    """Return what an op is called for which the host waits; empty if it does not."""
    name, args = call.info.name, call.args
    if name in COPIES:
        return _copy(call)
    if not args or not _is_on_device(args[0]):
        return ""
    if name in INDEXED:
        indices = args[1] if len(args) > 1 else ()
        return "index by a mask" if any(map(_is_mask, indices)) else ""
    return name.strip("_").rstrip("2") if name in SIZED_BY_VALUES else ""


def _copy(call: OpCall) -> str:
    """Return where a copy goes for which the host waits; empty if it does not."""
    if call.info.name == "copy_":
        target, source = call.args[:2]
        waits = not (call.args[2] if len(call.args) > 2 else call.kwargs.get("non_blocking", False))
    else:
        target, source = call.out, call.args[0]
        waits = not call.kwargs.get("non_blocking", False)
    if not waits or _is_on_device(target) == _is_on_device(source):
        return ""
    # A number goes along with the launch of what uses it, unless it is made a tensor.
    return TO_DEVICE if _is_on_device(target) else TO_HOST


def _is_mask(index: Any) -> bool:
    is_tensor = isinstance(index, torch.Tensor)
    return is_tensor and index.dtype in (torch.bool, torch.uint8) and _is_on_device(index)


def _is_on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type not in (HOST, "meta")
