"""Steps with gradients that come out of float16, of a loss that nobody scales."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import torch

from ampwatch.diagnosis.evidence.scaler import UnscaledStep
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.model.graph import nodes_behind, nodes_of
from ampwatch.training.private import metadata_of_node
from ampwatch.training.scalers.factors import may_be_scaled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.training.hooks import events as on
    from ampwatch.training.iteration.context import Context

MAX_STEPS = 8
"""Steps after which a training whose graphs were seen to lead through no float16 is left alone."""

MAX_NODES = 4096
"""Nodes of a graph that are looked at."""


class UnscaledHalf(Sensor):
    """Reports the first step of a training under float16 autocast whose loss no scaler has multiplied.

    The graph behind the loss says whether gradients come out of float16: autocast may have been entered
    for an evaluation. A loss that is multiplied by a constant which is large, or which only a device
    knows, may be scaled by a scaler of the program's own, and nothing is claimed.

    Cost:
        Nothing before float16 autocast is seen; then 0.5 us a node, in one step as a rule.
    """

    name = "unscaled_half"
    any_scaler = True
    waking = frozenset({"facts_changed"})
    is_dormant = True

    def __init__(self, context: Context) -> None:
        self._dtypes = context.autocast_dtypes
        self._registry = context.registry
        self._iteration = context.iteration
        self._bus = context.bus
        self._observe = context.observe
        self._is_half = False
        self._steps_left = MAX_STEPS

    def facts_changed(self, _event: on.FactsChanged) -> None:
        """Wake once float16 autocast is seen."""
        self.is_dormant = not self._steps_left or "float16" not in self._dtypes

    def scaled(self, event: on.Scaled) -> None:
        """Claim nothing where a scaler that is not watched is used."""
        if event.scaler.is_enabled():
            self._end()

    def backward_began(self, event: on.BackwardBegan) -> None:
        """Look whether backward leads through float16, and whether its loss is scaled."""
        if may_be_scaled(event.tensors, event.gradients):
            self._end()
        elif not self._is_half:
            self._is_half = event.is_alone and _leads_through_half(event.tensors)

    def optimizer_stepped(self, event: on.OptimizerStepped) -> None:
        """Report a step with such gradients."""
        if self._registry.index_of(event.optimizer) is None:
            return
        self._steps_left -= 1
        if self._is_half and not self._bus.infers_scale:
            self._observe(UnscaledStep(self._iteration.step))
        if self._is_half or not self._steps_left:
            self._end()

    def _end(self) -> None:
        self._steps_left, self.is_dormant = 0, True


def _leads_through_half(roots: Sequence[object]) -> bool:
    """Whether what backward computes for some node of a graph is in float16."""
    return any(
        taken.dtype is torch.float16
        for node, _ in islice(nodes_behind(nodes_of(roots)), MAX_NODES)
        for taken in metadata_of_node(node)
    )
