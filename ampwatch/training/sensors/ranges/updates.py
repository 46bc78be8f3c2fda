"""Updates: changes of an optimizer step, as a share of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import torch
from msgspec import Struct, field

from ampwatch.diagnosis.evidence.rounding import UPDATE_SPAN
from ampwatch.numerics.formats import FORMATS, HALF
from ampwatch.training.devices import HOST
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.kernels.admission import admit
from ampwatch.training.kernels.dtypes import name_of
from ampwatch.training.memory import bytes_held
from ampwatch.training.model.names import module_of, parameters_of
from ampwatch.training.model.tensors import parts_of
from ampwatch.training.transfer.measuring import Item
from ampwatch.training.transfer.slabs import How
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from ampwatch.training.hooks.events import IterationPlanned, OptimizerStepped, OptimizerStepping
    from ampwatch.training.iteration.context import Context
    from ampwatch.training.memory import HeldBytes

MAX_ELEMENTS = 4096
"""Elements of a parameter that are compared: every k-th in memory order, with the smallest k
that gives no more. The standard error of a share is then at most 0.8 %."""

MAX_TOGETHER = 2**20
"""Elements of all parameters of an optimizer together: 4 MB in float32. A model of 3000 parameters
has 349 of each, whose standard error is at most 2.7 %."""

COPIES = 5
"""Copies of these elements that are held at a time: the snapshot that is kept, those around a step,
their difference and what it is divided by."""

LONG_SPAN = 512
"""Iterations over which other optimizers must not have moved a weight. They may round
stochastically, or keep float32 weights of their own: then a weight in bfloat16 moves seldom, but
it moves."""

TINY = 2.0**-100
"""Smallest magnitude that a weight counts with, so that a change of a zero has a ratio. Dividing by
it gives a finite float32 number for updates below 2^27."""


class _Group(NamedTuple):
    """Some elements of the parameters of one device and dtype, in a row."""

    names: list[str]  # names of the parameters
    sizes: list[int]  # number of elements of each
    values: Tensor  # the elements, joined; float64 if they are, else float32


class _Snapshot(Struct):
    """Some elements of the parameters of one optimizer."""

    groups: list[_Group]  # the elements, by device and dtype
    step: int  # iteration in which they were taken

    def is_of_the_same_as(self, other: _Snapshot) -> bool:
        """Whether both hold the same elements of the same parameters."""
        mine = [(g.names, g.sizes, g.values.device) for g in self.groups]
        return mine == [(g.names, g.sizes, g.values.device) for g in other.groups]


class _SnapshotHistory(Struct):
    """The snapshots of one optimizer."""

    together: int  # elements of all parameters that the memory has room for
    before: _Snapshot | None = None  # snapshot from before the step that is running
    parts: int = 1  # number of parts that those in ``kept`` are of
    # snapshots that wait for later ones, by part
    kept: dict[int, _Snapshot] = field(default_factory=dict)


class UpdateSensor(Sensor):
    """Compares parameters before and after the step of an optimizer, in iterations that sample state.

    Compares over this one step, and over the many iterations since a snapshot that is kept:
    rounding that loses each update loses their sum as well.

    Parameters whose group has a learning rate of 0 are left out: they are not meant to move.
    """

    name = "updates"
    waking = frozenset({"iteration_planned"})

    def __init__(self, context: Context) -> None:
        self._lost_eps = context.lost_eps
        self._registry = context.registry
        self._names = context.names
        self._governor = context.governor
        self._measuring = context.measuring
        self._memory = context.memory
        self._memory.add("updates", self.held_bytes)
        # Weak, so that an optimizer that is gone takes its snapshots along.
        self._histories: WeakKeyDictionary[Optimizer, _SnapshotHistory] = WeakKeyDictionary()

    def removed(self) -> None:
        """Forget the snapshots."""
        self._histories.clear()

    def iteration_planned(self, _event: IterationPlanned) -> None:
        """Compare weights in the iteration, or not."""
        self.is_dormant = Topic.UPDATE not in self._governor.wanted

    def optimizer_stepping(self, event: OptimizerStepping) -> None:
        """Take a snapshot before the step."""
        optimizer = event.optimizer
        index = self._registry.index_of(optimizer)
        if index is None:
            return
        history = self._histories.get(optimizer)
        if history is None:
            history = self._histories[optimizer] = _SnapshotHistory(self._room_for(optimizer))
            self._check_eps(optimizer, index)
        if history.before is not None and history.before.step == self._governor.step:
            return  # a step within a step: of a wrapper, or of super().step()
        history.before = self._snapshot(optimizer, index, history.together)
        if history.before is not None:
            self._compare_with_kept(history, history.before, _span_of(optimizer))

    def _compare_with_kept(self, history: _SnapshotHistory, now: _Snapshot, span: int) -> None:
        part, parts = self._governor.part
        if history.parts != parts:
            history.parts = parts
            history.kept.clear()
        kept = history.kept.setdefault(part, now)
        if not now.is_of_the_same_as(kept):
            history.kept[part] = now
        elif now.step - kept.step >= span:
            self._compare(kept, now)
            history.kept[part] = now

    def optimizer_stepped(self, event: OptimizerStepped) -> None:
        """Compare with the snapshot from before the step."""
        optimizer = event.optimizer
        history = self._histories.get(optimizer)
        index = self._registry.index_of(optimizer)
        if history is None or index is None:
            return
        before = history.before
        history.before = None
        # A step that raised has left its snapshot behind.
        if before is None or before.step != self._governor.step:
            return
        after = self._snapshot(optimizer, index, history.together)
        if after is not None and after.is_of_the_same_as(before):
            self._compare(before, after)

    def held_bytes(self) -> HeldBytes:
        """Return the bytes of the snapshots."""
        histories = list(self._histories.values())
        kept = [snapshot for h in histories for snapshot in (h.before, *h.kept.values())]
        return bytes_held(
            {id(g): g.values for s in kept if s is not None for g in s.groups}.values()
        )

    def _room_for(self, optimizer: Optimizer) -> int:
        """Return how many elements of an optimizer's parameters the memory has room for."""
        parameters = parameters_of(optimizer)
        size = max((p.dtype.itemsize for p in parameters), default=0)
        left = self._memory.left()
        room = left.host if all(p.device.type == HOST for p in parameters) else left.device
        return min(MAX_TOGETHER, room // (COPIES * max(size, torch.float32.itemsize)))

    def _snapshot(self, optimizer: Optimizer, index: int, together: int) -> _Snapshot | None:
        rates = [g.get("lr") for g in optimizer.param_groups for _ in g["params"]]
        named = self._names.of_optimizer(optimizer, index)
        most = min(MAX_ELEMENTS, together // max(1, len(named)))
        if not most:
            self._memory.refuse("updates", "updates of weights are not measured")
            return None
        part, parts = self._governor.part
        groups: dict[tuple[torch.device, torch.dtype], tuple[list[str], list[Tensor]]] = {}
        for (name, parameter), rate in list(zip(named, rates, strict=True))[part::parts]:
            if parameter.grad is None or _is_zero(rate):
                continue
            for inner, values in parts_of(name, parameter, parameter):
                sample = sample_of(values, most)
                if sample is not None:
                    names, samples = groups.setdefault((sample.device, sample.dtype), ([], []))
                    names.append(inner)
                    samples.append(sample)
        if not groups:
            return None
        return _Snapshot([_joined(*group) for group in groups.values()], self._governor.step)

    def _compare(self, before: _Snapshot, after: _Snapshot) -> None:
        """Measure the change between two snapshots; an element that did not change is a zero."""
        items: list[Item] = []
        for old, new in zip(before.groups, after.groups, strict=True):
            with torch.no_grad():
                ratio = (new.values - old.values).abs_()
                ratio.div_(old.values.abs().clamp_min_(TINY))
                # An infinity that stays where it is, as in a mask: inf - inf is NaN.
                ratio.masked_fill_(new.values == old.values, 0.0)
            parts = torch.split(ratio, old.sizes)
            named = zip(old.names, parts, strict=True)
            items += [Item(name, module_of(name), part) for name, part in named]
        # Two snapshots around one step are of the same iteration.
        span = max(1, after.step - before.step)
        self._measuring.measure(Topic.UPDATE, items, How(span=span))

    def _check_eps(self, optimizer: Optimizer, index: int) -> None:
        named = iter(self._names.of_optimizer(optimizer, index))
        for group in optimizer.param_groups:
            eps = group.get("eps")
            for _ in group["params"]:
                name, parameter = next(named)
                dtype = name_of(parameter.dtype)
                if (
                    isinstance(eps, float)
                    and dtype in HALF
                    and 0.0 < eps <= FORMATS[dtype].flush_at
                ):
                    self._lost_eps[name] = eps


def sample_of(parameter: Tensor, most: int = MAX_ELEMENTS) -> Tensor | None:
    """Return a view of every k-th element, at most ``most``; ``None`` if it has none."""
    pieces, _ = admit(parameter.detach())
    if not pieces:
        return None
    # The elements of a piece lie one after another in memory, in whatever shape: so a view with
    # one dimension and a stride reaches every k-th.
    apart = -(-pieces[0].numel() // most)
    return pieces[0].as_strided((-(-pieces[0].numel() // apart),), (apart,))


@torch.no_grad()
def _joined(names: list[str], samples: list[Tensor]) -> _Group:
    # PyTorch neither joins nor subtracts float8.
    wide = samples if samples[0].dtype.itemsize > 1 else [s.float() for s in samples]
    values = torch.cat(wide)
    if values.dtype is not torch.float64:
        values = values.float()
    return _Group(names, [sample.numel() for sample in samples], values)


def _span_of(optimizer: Optimizer) -> int:
    """Return the iterations over which an optimizer must not have moved a weight."""
    own = type(optimizer).__module__.startswith("torch.optim")
    return UPDATE_SPAN if own else LONG_SPAN


def _is_zero(rate: object) -> bool:
    # A learning rate that is a tensor may be on a device, where reading it would be a sync.
    return isinstance(rate, (int, float)) and rate == 0
