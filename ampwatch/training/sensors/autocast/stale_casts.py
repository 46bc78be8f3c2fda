"""Casts of weights that autocast has kept although the weights have changed."""

from __future__ import annotations

from itertools import islice
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from ampwatch.diagnosis.evidence.scaler import StaleCast
from ampwatch.training.hooks.compiling import is_traced
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.kernels.dtypes import name_of
from ampwatch.training.model.graph import CAST, nodes_behind
from ampwatch.training.private import is_in_autocast, next_sequence_number, sequence_number

if TYPE_CHECKING:
    from ampwatch.training.hooks.events import AutocastLeft, BackwardBegan, OptimizerStepped
    from ampwatch.training.iteration.context import Context

MAX_NODES = 20000
"""Nodes of one graph that are visited."""

MAX_GRAPHS = 64
"""Graphs that are checked in a run: a program that steps inside of autocast and is right about it
(it clears the cache) is not to pay for it for ever."""


class StaleCastSensor(Sensor):
    """Proves from the graph of a loss that a cast is older than the weight that it was made of.

    Nodes of a graph are numbered in the order in which their ops ran. A cast of a weight from
    before the last step of the optimizer, that is used by an op from after it, is stale. Graphs
    are checked only after an optimizer has stepped inside of an autocast region that keeps casts,
    and until that region is left.
    """

    name = "stale_casts"
    # Dormant until an optimizer steps inside of a region: nothing is stale before.
    waking = frozenset({"optimizer_stepped"})
    is_dormant = True
    rests = True

    def __init__(self, context: Context) -> None:
        self._names = context.names
        self._iteration = context.iteration
        self._observe = context.observe
        self._stepped: dict[int, dict[int, int]] = {}
        self._graphs = 0

    def removed(self) -> None:
        """Forget the steps."""
        self._stepped.clear()

    def autocast_left(self, _event: AutocastLeft) -> None:
        """Forget the steps inside the outermost region: with it the cache goes."""
        if not is_in_autocast():
            self._stepped.pop(get_ident(), None)
            self.is_dormant = not self._stepped

    def optimizer_stepped(self, event: OptimizerStepped) -> None:
        """Take note of the parameters that a step inside of a region has changed."""
        if not is_in_autocast() or is_traced() or not torch.is_autocast_cache_enabled():
            return
        if self._graphs >= MAX_GRAPHS:
            return
        # Ops of this thread after the step make nodes with this number or a larger one.
        now = int(next_sequence_number())
        changed = self._stepped.setdefault(get_ident(), {})
        for group in event.optimizer.param_groups:
            changed.update({id(p): now for p in group["params"]})
        self.is_dormant = False

    def backward_began(self, event: BackwardBegan) -> None:
        """Check the graphs that a backward goes through."""
        for root in event.tensors:
            self._check(root)

    def _check(self, root: torch.Tensor) -> None:
        changed = self._stepped.get(get_ident())
        if not changed or self._graphs >= MAX_GRAPHS or getattr(root, "grad_fn", None) is None:
            return
        self._graphs += 1
        stale = _stale(root.grad_fn, changed)
        if stale:
            named = {id(p): name for name, p in self._names.parameters()}
            ordered = [name for key, name in named.items() if key in stale]
            device = next(iter(stale.values())).device.type
            self._observe(
                StaleCast(
                    step=self._iteration.step,
                    parameter=ordered[0] if ordered else "",
                    casts=len(stale),
                    dtype=name_of(torch.get_autocast_dtype(device)),
                )
            )


def _stale(root: Any, changed: dict[int, int]) -> dict[int, torch.Tensor]:
    """Return the changed parameters that newer ops of a graph use through older casts."""
    found: dict[int, torch.Tensor] = {}
    for node, following in islice(nodes_behind([root]), MAX_NODES):
        for below, _ in following:
            parameter = None if below is None else _cast_parameter(below)
            if parameter is not None:
                # Both numbers are of the thread that has stepped: each thread counts its own.
                changed_at = changed.get(id(parameter))
                if changed_at is not None and sequence_number(
                    below
                ) < changed_at <= sequence_number(node):
                    found[id(parameter)] = parameter
    return found


def _cast_parameter(node: Any) -> torch.Tensor | None:
    """Return the leaf that ``node`` casts; ``None`` if it is anything else."""
    if CAST not in node.name() or not node.next_functions:
        return None
    # Only the node that accumulates the gradient of a leaf has a ``variable``.
    leaf: torch.Tensor | None = getattr(node.next_functions[0][0], "variable", None)
    return leaf
