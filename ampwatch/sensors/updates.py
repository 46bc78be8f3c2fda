"""What an optimizer step changed, as a share of the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ampwatch.kernels.admission import admit
from ampwatch.numerics.formats import FORMATS
from ampwatch.records import Topic
from ampwatch.sensors.measuring import How, Item
from ampwatch.sensors.names import module_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

    from ampwatch.sensors.guard import Guard
    from ampwatch.sensors.measuring import Measuring
    from ampwatch.sensors.names import Names
    from ampwatch.sensors.optimizers import OptimizerRegistry
    from ampwatch.sensors.sampling import Sampler

MOST_ELEMENTS = 4096
"""Elements of a parameter that are compared: every k-th in memory order, with the smallest k
that gives no more. The standard error of a share is then at most 0.8 %."""

SPAN = 8
"""Iterations after which the snapshot that is kept is replaced."""

TINY = 2.0**-100
"""What a weight that is zero counts as, so that a change of it has a ratio; dividing the
largest float32 update by it still gives a finite number for updates below 2^27."""

HALF = ("float16", "bfloat16")


@dataclass(slots=True)
class _Snapshot:
    """Some elements of the parameters of one optimizer, in a row."""

    values: Tensor
    names: Sequence[str]
    sizes: Sequence[int]
    step: int

    def is_of_the_same_as(self, other: _Snapshot) -> bool:
        """Whether both hold the same elements of the same parameters."""
        return self.names == other.names and self.sizes == other.sizes


class UpdateSensor:
    """Compares parameters before and after the step of an optimizer, in iterations that sample state.

    Two comparisons: over this one step, and over the ``SPAN`` or more iterations since a
    snapshot that is kept. Rounding that loses each update loses their sum as well; stochastic
    rounding does not.

    Parameters whose group has a learning rate of 0 are left out: they are not meant to move.

    Args:
        registry: Knows which optimizers belong here.
        names: Names of the parameters.
        sampler: Says which iterations are sampled.
        measuring: Measures.
        guard: The fail-open boundary.

    Attributes:
        lost_eps: Name of each float16 or bfloat16 parameter to the ``eps`` of its group,
            where that is zero in the dtype of the parameter.
    """

    name = "updates"

    def __init__(
        self,
        registry: OptimizerRegistry,
        names: Names,
        sampler: Sampler,
        measuring: Measuring,
        guard: Guard,
    ) -> None:
        self.lost_eps: dict[str, float] = {}
        self._registry = registry
        self._names = names
        self._sampler = sampler
        self._measuring = measuring
        self._guard = guard
        self._before: dict[int, _Snapshot] = {}
        self._kept: dict[tuple[int, int, int], _Snapshot] = {}
        self._known: set[int] = set()
        self._handles: list[RemovableHandle] = []

    def install(self) -> None:
        """Register PyTorch's own hooks around ``optimizer.step``."""
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def remove(self) -> None:
        """Take the hooks out."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._before.clear()
        self._kept.clear()

    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if Topic.UPDATE in self._sampler.wanted and not torch.compiler.is_compiling():
            self._guard.run(self.before_step, optimizer)

    def _after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if id(optimizer) in self._before and not torch.compiler.is_compiling():
            self._guard.run(self.after_step, optimizer)

    def before_step(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step."""
        index = self._registry.index_of(optimizer)
        if index is None or self._is_nested(optimizer):
            return
        if id(optimizer) not in self._known:
            self._known.add(id(optimizer))
            self._look_at_eps(optimizer, index)
        snapshot = self._snapshot(optimizer, index)
        if snapshot is None:
            return
        self._before[id(optimizer)] = snapshot
        # Parts of the parameters are looked at in turn: each has a snapshot of its own.
        key = (id(optimizer), *self._sampler.part)
        kept = self._kept.setdefault(key, snapshot)
        if not snapshot.is_of_the_same_as(kept):
            self._kept[key] = snapshot
        elif snapshot.step - kept.step >= SPAN:
            self._compare(kept, snapshot)
            self._kept[key] = snapshot

    def _is_nested(self, optimizer: Optimizer) -> bool:
        """Whether this is a step within a step, of a wrapper or of ``super().step()``."""
        before = self._before.get(id(optimizer))
        return before is not None and before.step == self._sampler.step

    def after_step(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped."""
        before = self._before.pop(id(optimizer))
        index = self._registry.index_of(optimizer)
        after = None if index is None else self._snapshot(optimizer, index)
        if after is not None and after.is_of_the_same_as(before):
            self._compare(before, after)

    def _snapshot(self, optimizer: Optimizer, index: int) -> _Snapshot | None:
        rates = [g.get("lr") for g in optimizer.param_groups for _ in g["params"]]
        named = self._names.of_optimizer(optimizer, index)
        part, parts = self._sampler.part
        names, samples = [], []
        for (name, parameter), rate in list(zip(named, rates, strict=True))[part::parts]:
            if parameter.grad is None or _is_zero(rate):
                continue
            sample = sample_of(parameter)
            if sample is not None:
                names.append(name)
                samples.append(sample)
        if not samples:
            return None
        with torch.no_grad():
            values = torch.cat(samples)
            if values.dtype is not torch.float64:
                values = values.float()
        sizes = [sample.numel() for sample in samples]
        return _Snapshot(values, names, sizes, self._sampler.step)

    def _compare(self, before: _Snapshot, after: _Snapshot) -> None:
        """Measure what lies between two snapshots; an element that did not change is a zero."""
        with torch.no_grad():
            ratio = (after.values - before.values).abs_()
            ratio.div_(before.values.abs().clamp_min_(TINY))
        items = [
            Item(name, module_of(name), part)
            for name, part in zip(before.names, torch.split(ratio, list(before.sizes)), strict=True)
        ]
        # Two snapshots around one step are of the same iteration.
        span = max(1, after.step - before.step)
        self._measuring.measure(Topic.UPDATE, items, How(span=span))

    def _look_at_eps(self, optimizer: Optimizer, index: int) -> None:
        named = iter(self._names.of_optimizer(optimizer, index))
        for group in optimizer.param_groups:
            eps = group.get("eps")
            for _ in group["params"]:
                name, parameter = next(named)
                dtype = str(parameter.dtype).removeprefix("torch.")
                if (
                    isinstance(eps, float)
                    and dtype in HALF
                    and 0.0 < eps <= FORMATS[dtype].flush_at
                ):
                    self.lost_eps[name] = eps


def sample_of(parameter: Tensor) -> Tensor | None:
    """Return a view of every k-th element, at most ``MOST_ELEMENTS``; ``None`` if it has none."""
    pieces, _ = admit(parameter.detach())
    if not pieces:
        return None
    # The elements of a piece lie one after another in memory, whatever its shape.
    apart = -(-pieces[0].numel() // MOST_ELEMENTS)
    return pieces[0].as_strided((-(-pieces[0].numel() // apart),), (apart,))


def _is_zero(rate: object) -> bool:
    # A learning rate that is a tensor may be on a device and is not asked for.
    return isinstance(rate, (int, float)) and rate == 0
