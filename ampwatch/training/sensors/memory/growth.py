"""The memory that a training takes, and graphs that it keeps."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.evidence.memory import HeldParts, Holding, Memory, MemoryPlace, MemoryRead
from ampwatch.training.devices import (
    HOST,
    host_memory,
    host_memory_limit,
    memory_limit_of,
    memory_of,
)
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.hooks.sources import user_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ampwatch.training.hooks import events as on
    from ampwatch.training.iteration.context import Context


MAX_MARKED = 64
"""Iterations that are followed; of more each second one."""

MAX_DEPTH = 128
"""Nodes between a loss and the part of its graph that is followed. Where blocks are residual, two nodes are one
block; whatever output is kept, what it was computed of is kept with it."""

MAX_CASTS = 3
"""Nodes between a parameter and the op that takes it: its cast by autocast, its transpose."""

MIN_AGE = 3
"""Iterations that a program may still hold: the names of its loop do, and so does what is read late."""

KEY = "ampwatch"
"""Name of the mark among what PyTorch keeps beside a node for its user (``grad_fn.metadata``)."""

LEAF = "torch::autograd::AccumulateGrad"
"""Name of the nodes of parameters, which live as long as these."""


class _Marked(NamedTuple):
    """An iteration that is followed."""

    step: int  # its index
    loss: weakref.ref[torch.Tensor]  # the loss, if it still lives
    graph: weakref.ref[set[Any]]  # the mark beside its node
    # the mark beside a node that it was computed of; ``None`` without one
    part: weakref.ref[set[Any]] | None
    source: str  # ``file:line`` that has called backward

    @property
    def holding(self) -> Holding | None:
        """What of it is still there; ``None`` if nothing is."""
        loss = self.loss()
        if loss is not None and loss.grad_fn is not None:
            return Holding.LOSS
        if self.graph() is not None:
            return Holding.SUM
        return Holding.PART if self.part is not None and self.part() is not None else None


class HeldGraphs:
    """Follows the losses of some iterations, and their graphs, without holding either.

    Beside a node of a graph an empty set is laid, to which a weak reference is kept: it is gone with
    the node. Nothing else tells whether a node is still there, for a running total of losses holds
    their nodes and not the losses.
    """

    def __init__(self) -> None:
        self._marked: list[_Marked] = []

    def mark(self, step: int, loss: object) -> bool:
        """Follow a loss of an iteration; return whether it has a graph.

        Cost: 10 us, and some 2 us a node of the way down its graph, so 0.3 ms for a deep model.
        """
        node = getattr(loss, "grad_fn", None)
        if node is None or not isinstance(loss, torch.Tensor):
            return False
        graph = _marked(node)
        if graph is None:
            return False
        below = _below(node)
        part = None if below is None else _marked(below)
        self._marked.append(_Marked(step, weakref.ref(loss), graph, part, user_source()))
        if len(self._marked) > MAX_MARKED:
            del self._marked[1::2]
        return True

    def let_go(self) -> None:
        """Follow none of those that were marked so far."""
        self._marked.clear()

    def kept(self, step: int) -> HeldParts | None:
        """Return what is still there of every iteration that was looked at, from some on until ``step``.

        Those of the last ``MIN_AGE`` iterations are left out.

        Cost: 0.2 us an iteration that is followed.
        """
        old = [marked for marked in self._marked if step - marked.step >= MIN_AGE]
        return _of(old) if old else None


def _of(old: Sequence[_Marked]) -> HeldParts | None:
    """Return what is still there of the newest iterations in a row."""
    newest = old[-1].holding
    if newest is None:
        return None
    count = 0
    for marked in reversed(old):
        if marked.holding is not newest:
            break
        count += 1
    return HeldParts(newest, count, old[-count].step, old[-1].source)


def _marked(node: Any) -> weakref.ref[set[Any]] | None:
    """Lay a mark beside a node; ``None`` if it has one of another iteration, or takes none."""
    metadata = getattr(node, "metadata", None)
    if not isinstance(metadata, dict) or KEY in metadata:
        return None
    # Of a builtin class: it stays beside a node that outlives the monitor.
    mark: set[Any] = set()
    metadata[KEY] = mark
    return weakref.ref(mark)


def _below(node: Any) -> Any:
    """Return the node farthest from a loss, ``MAX_DEPTH`` at most, on a way that leads to no parameter."""
    found = None
    for _ in range(MAX_DEPTH):
        node = next((one for one, _ in node.next_functions if not _is_of_parameter(one)), None)
        if node is None:
            break
        found = node
    return found


def _is_of_parameter(node: Any) -> bool:
    """Return whether a node is a parameter's, or a cast or view of one; so is ``None``, which needs no gradient."""
    for _ in range(MAX_CASTS + 1):
        if node is None or node.name() == LEAF:
            return True
        inputs = node.next_functions
        if len(inputs) != 1:
            return False
        node = inputs[0][0]
    return False


SPARSE = 64
"""Share, one in so many, of the iterations so far after which memory is read again: a leak shows in a
history that is as long as the training."""

MIN_APART = 4
"""Iterations after which it is read again at the earliest."""

MAX_APART = 32
"""Iterations after which it is due again at the latest: the next one that sensors hear which rest."""


class MemorySensor(Sensor):
    """Reads the memory of the process at the end of some iterations, and follows losses of some.

    Of a training on accelerators the memory of the first of its devices is read, and that of the host.

    Cost:
        80 us in an iteration that is read, and 2 us a node of the way down the graph of its loss, 128 at
        most. One in 4 is read at the beginning of a run, then one in 45 as a rule, which is 2 to 8 us
        an iteration. No sync.
    """

    name = "memory"
    rests = True

    def __init__(self, context: Context) -> None:
        self._home = context.home
        self._clock = context.clock
        self._observe = context.observe
        self._graphs = HeldGraphs()
        self._due = 0
        self._marked = -1
        self._step = context.iteration
        self._limits: dict[torch.device | None, int] = {}

    def devices_known(self, _event: on.DevicesKnown) -> None:
        """Ask at set-up how much memory there is."""
        self._limits.clear()
        self._limit_of(None)
        if (device := self._device()) is not None:
            self._limit_of(device)

    def scaled(self, event: on.Scaled) -> None:
        """Follow the loss that was scaled: what is handed to backward is a product of it."""
        outputs = event.outputs
        first = outputs[0] if isinstance(outputs, (list, tuple)) and outputs else outputs
        self._mark(first)

    def backward_began(self, event: on.BackwardBegan) -> None:
        """Follow the loss, if none of this iteration is followed."""
        if event.tensors:
            self._mark(event.tensors[0])

    def _mark(self, loss: object) -> None:
        step = self._step.step
        # One of each iteration that is read, and the next one's: what was read late is no leak.
        if step > self._marked and step >= self._due and self._graphs.mark(step, loss):
            self._marked = step

    def tensors_swapping(self, _event: on.TensorsSwapping) -> None:
        """Refer to no loss."""
        self._graphs.let_go()

    def iteration_closed(self, event: on.IterationClosed) -> None:
        """Read memory, if that is due."""
        iteration = event.iteration
        step = iteration.step
        if step < self._due:
            return
        self._due = step + min(max(step // SPARSE, MIN_APART), MAX_APART)
        places = tuple(self._read())
        if places:
            kept = self._graphs.kept(step)
            self._observe(MemoryRead(step, self._clock.unix_ns(), places, kept))

    def removed(self) -> None:
        """Forget the losses."""
        self._graphs.let_go()

    def _read(self) -> Iterator[Memory]:
        device = self._device()
        used = None if device is None else memory_of(device)
        if used is not None:
            yield Memory(
                MemoryPlace.DEVICE,
                used.allocated,
                used.peak,
                used.reserved,
                self._limit_of(device),
                used.allocations,
            )
        used = host_memory()
        if used is not None:
            limit = self._limit_of(None)
            yield Memory(MemoryPlace.HOST, used.allocated, used.peak, limit=limit)

    def _device(self) -> torch.device | None:
        """Return the accelerator that the training is on; ``None`` without one."""
        device = self._home.device
        return None if device is None or device.type == HOST else device

    def _limit_of(self, device: torch.device | None) -> int:
        known = self._limits.get(device)
        if known is None:
            known = host_memory_limit() if device is None else memory_limit_of(device)
            self._limits[device] = known
        return known

    def not_seen(self) -> list[str]:
        """Return, in sentences, what memory is not read."""
        sentences = []
        device = self._device()
        if device is not None and memory_of(device) is None:
            sentences.append(
                f"memory of {device.type} is not read: PyTorch's backend for it does not count it"
            )
        if host_memory() is None:
            sentences.append("memory of the host is not read: this system does not report it")
        return sentences
