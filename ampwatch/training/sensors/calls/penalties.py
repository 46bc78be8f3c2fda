"""Gradients of a scaled loss that the program puts into another loss: gradient penalties."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

from ampwatch.diagnosis.evidence.calls import ScaledPenalty
from ampwatch.training.hooks.bus import AWAKE
from ampwatch.training.hooks.places.backward import listed
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.hooks.sources import user_source
from ampwatch.training.model.graph import nodes_of
from ampwatch.training.model.names import parameters_of
from ampwatch.training.model.scaler import scale_on_host
from ampwatch.training.private import scale_tensor
from ampwatch.training.scalers.factors import constant_of, is_power_of_two
from ampwatch.training.sensors.calls.scaled_roots import LINEAR, leaves_of
from ampwatch.training.transfer.readback import host_scalar

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from ampwatch.training.hooks import events as on
    from ampwatch.training.iteration.context import Context

MARK = "ampwatch: taken of a scaled loss"
"""Key in the metadata of a node of the graph. Metadata hold neither tensors nor nodes, and end with the node."""

MAX_NODES = 512
"""Nodes nearest to a loss among which gradients are looked for."""

KEEPS_FACTOR = LINEAR | {
    "Abs",
    "Clamp",
    "LinalgVectorNorm",
    "MseLoss",
    "Norm",
    "Pow",
    "Relu",
    "Sqrt",
}
"""Names of nodes whose results grow with a factor of what they are given: nothing is divided by it there."""


class PenaltySensor(Sensor):
    """Finds gradients that ``torch.autograd.grad`` took of a scaled loss behind a loss that is scaled in its turn.

    They are multiplied by the scale. Reported only where a path from the loss to the gradients has no factor
    that may be the scale, and nothing that would cancel it, as the quotient of two gradients does.

    Cost: nothing where no gradients are taken with a graph; else 10 us, and up to 0.5 ms for the loss.
    """

    name = "penalties"
    waking = frozenset({"gradients_taken"})
    is_dormant = True
    rests = True

    def __init__(self, context: Context) -> None:
        self._bus = context.bus
        self._scaler = context.some_scaler
        self._registry = context.registry
        self._iteration = context.iteration
        self._observe = context.observe
        self._source = ""
        self._leaves: set[int] | None = None

    def may_rest(self) -> bool:
        """Whether no gradients are in use."""
        return self.is_dormant

    def woken(self) -> None:
        """Begin anew."""
        self._forget()

    def removed(self) -> None:
        """Forget everything."""
        self._forget()

    def _forget(self) -> None:
        self.is_dormant, self._source, self._leaves = True, "", None

    def gradients_taken(self, event: on.GradientsTaken) -> None:
        """Mark gradients of a loss that ``scaler.scale`` has returned."""
        if not any(map(self._is_scaled, nodes_of(event.outputs))):
            return
        if self.is_dormant:
            self._bus.wake(AWAKE)
            self.is_dormant = False
        source = user_source()
        for node in nodes_of(event.gradients):
            if node is not None:
                node.metadata[MARK] = source

    def scaled(self, event: on.Scaled) -> None:
        """Look for marked gradients behind a loss."""
        if event.scaler is not self._scaler or self._source:
            return
        for root in nodes_of(listed(event.result)):
            node = None if root is None else self._taken_behind(root)
            if node is not None:
                self._source, self._leaves = node.metadata[MARK], leaves_of([node])

    def step_began(self, event: on.StepBegan) -> None:
        """Report that the step is one with such gradients, if they lead to its parameters."""
        if not self._source or event.scaler is not self._scaler:
            return
        if self._leads_to(event.optimizer):
            self._observe(
                ScaledPenalty(
                    step=self._iteration.step,
                    optimizer=self._registry.admit(event.optimizer),
                    scale=scale_on_host(self._scaler),
                    source=self._source,
                )
            )

    def updated(self, event: on.Updated) -> None:
        """Begin anew: gradients that were taken before are not put into a loss after it."""
        if event.scaler is self._scaler:
            self._forget()

    def _leads_to(self, optimizer: Optimizer) -> bool:
        leaves = self._leaves
        return leaves is None or any(id(p) in leaves for p in parameters_of(optimizer))

    def _is_scaled(self, node: Any) -> bool:
        """Whether a node is the product with the scale."""
        if node is None or not node.name().startswith("MulBackward"):
            return False
        constant, scale = _constant(node), scale_tensor(self._scaler)
        if constant is None or scale is None:
            return False
        return constant.data_ptr() == scale.data_ptr()

    def _taken_behind(self, root: Any) -> Any:
        """Return a node of marked gradients that a scaled loss grows with; ``None`` without one."""
        scale = scale_on_host(self._scaler)
        waiting = deque(child for child, _ in root.next_functions)
        seen: dict[int, Any] = {}
        while waiting and len(seen) < MAX_NODES:
            node = waiting.popleft()
            if node is None or id(node) in seen:
                continue
            seen[id(node)] = node
            if MARK in node.metadata:
                return node
            if node.name().partition("Backward")[0] in KEEPS_FACTOR and not _may_unscale(
                node, scale
            ):
                waiting += [child for child, _ in node.next_functions]
        return None


def _may_unscale(node: Any, scale: float) -> bool:
    """Whether a product or a quotient may divide by the scale; NaN for a scale that the host does not know."""
    name = node.name().partition("Backward")[0]
    if name not in ("Mul", "Div"):
        return False
    children = {id(child) for child, _ in node.next_functions if child is not None}
    if name == "Mul" and len(children) == 1 and None not in dict(node.next_functions):
        return False  # a square
    constant = _constant(node)
    if constant is None or constant.device.type != "cpu" or len(children) > 1:
        return True
    factor = abs(host_scalar(constant.float()))
    if not 0.0 < factor < math.inf or factor == 1.0:
        return False
    # Of a scale that the host does not know: scales are powers of two, and few weights of losses are.
    if math.isnan(scale):
        return is_power_of_two(max(factor, 1.0 / factor))
    return any(math.isclose(factor, scale**power) for power in (-2, -1, 1, 2))


def _constant(node: Any) -> torch.Tensor | None:
    try:
        return constant_of(node)
    except (RuntimeError, AttributeError):
        return None  # freed, or changed in place meanwhile: backward itself will raise
