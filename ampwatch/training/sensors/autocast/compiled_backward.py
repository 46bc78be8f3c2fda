"""Gradients of regions that compiled code keeps out of autocast."""

from __future__ import annotations

import math
import sys
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from ampwatch.diagnosis.evidence.scaler import CompiledGradients
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.kernels.dtypes import name_of
from ampwatch.training.model.living import alive
from ampwatch.training.model.tensors import num_nonfinite
from ampwatch.training.private import BACKWARD_AUTOCAST, ConvNd, is_in_autocast
from ampwatch.training.transfer.readback import host_scalar

if TYPE_CHECKING:
    from collections.abc import Callable

    from ampwatch.training.hooks.events import BackwardBegan, GraphCaptured
    from ampwatch.training.iteration.context import Context

EACH_BACKWARD = 64
"""Backwards that are each checked; of later ones one in ``SELDOM`` is."""

SELDOM = 16

SAME_AS_FORWARD = "same_as_forward"
"""Value of ``backward_pass_autocast`` under which backward runs as autocast was around forward."""


class _ProtectedRegion(NamedTuple):
    """A part of a compiled graph that is kept out of autocast."""

    protected: list[weakref.ref[torch.Tensor]]  # parameters that are used inside
    behind: list[weakref.ref[torch.Tensor]]  # parameters that are used after it
    dtype: str  # name of the dtype of the autocast region around the compiled code
    # ops of backward that make gradients inside, by identity of the parameter, where they are
    # certain
    products: dict[int, str]


PRODUCTS = {"bmm": "bmm", "baddbmm": "bmm", "mm": "mm", "addmm": "mm"}
"""Ops that make the gradients of a product, by the name of its function."""


class CompiledBackwardSensor(Sensor):
    """Checks graphs that ``torch.compile`` has captured, and the gradients that come of them.

    A graph that is captured under autocast, and switches it off for some ops, has a backward that
    autocast is on for throughout, unless ``torch._functorch.config.backward_pass_autocast`` says
    otherwise. That is the cause where after a backward gradients of these ops are not finite, and
    all gradients behind them are. On a CPU only: elsewhere reading gradients would be a sync.
    """

    name = "compiled_backward"
    # Dormant until a captured graph has a part without autocast: most trainings never have one.
    waking = frozenset({"graph_captured"})
    is_dormant = True
    rests = True

    def __init__(self, context: Context) -> None:
        self._bus = context.bus
        self._names = context.names
        self._iteration = context.iteration
        self._losses = context.losses
        self._observe = context.observe
        self._context = context
        self._regions: list[_ProtectedRegion] = []
        self._backwards = 0

    def removed(self) -> None:
        """Forget the graphs."""
        self._regions.clear()

    def graph_captured(self, event: GraphCaptured) -> None:
        """Note which part of a graph that is about to be compiled is kept out of autocast."""
        graph, inputs = event
        if _backward_pass_autocast() != SAME_AS_FORWARD:
            return
        device = next((x.device.type for x in inputs if isinstance(x, torch.Tensor)), "cpu")
        if not torch.is_autocast_enabled(device) or device != "cpu":
            return
        region = _protected(graph, inputs, name_of(torch.get_autocast_dtype(device)))
        if region.protected:
            self._regions.append(region)
            self.is_dormant = False
            self._bus.wake()

    def backward_began(self, _event: BackwardBegan) -> Callable[[], None]:
        """Have the gradients checked that this backward leaves."""
        return self._backward_ended

    def _backward_ended(self) -> None:
        if not self._regions or is_in_autocast():
            return
        self._backwards += 1
        if self._backwards > EACH_BACKWARD and self._backwards % SELDOM:
            return
        for region in self._regions:
            self._check(region)

    def _check(self, region: _ProtectedRegion) -> None:
        protected = alive(region.protected)
        bad = {id(p): n for p in protected if (n := num_nonfinite(p.grad))}
        if not bad or not math.isfinite(self._losses.on_host):
            return
        # A gradient that comes in broken, from the loss or from behind, breaks every element here.
        # One that breaks here overflows in float16, and so becomes infinite before it becomes NaN.
        elements = sum(p.grad.numel() for p in protected if p.grad is not None)
        if sum(bad.values()) >= elements or any(
            num_nonfinite(p.grad) for p in alive(region.behind)
        ):
            return
        if not any(_infinite(p.grad) for p in protected if id(p) in bad):
            return
        name, op = self._describe(bad, region.products)
        self._observe(
            CompiledGradients(
                step=self._iteration.step,
                parameter=name,
                op=op,
                dtype=region.dtype,
                nonfinite=sum(bad.values()),
                parameters=len(bad),
                is_scaled=self._context.is_scaled,
            )
        )

    def _describe(self, nonfinite: dict[int, int], products: dict[int, str]) -> tuple[str, str]:
        """Return name and op of the parameter with most non-finite elements in its gradient."""
        worst = op = ""
        most = 0
        for path, module in self._names.modules():
            for name, parameter in module.named_parameters(recurse=False):
                count = nonfinite.get(id(parameter), 0)
                if count > most:
                    most = count
                    worst = f"{path}.{name}".lstrip(".")
                    op = _op(module, parameter) or products.get(id(parameter), "")
        return worst, op


def _op(module: nn.Module, parameter: torch.Tensor) -> str:
    """Return the op that computes the gradient of a module's weight, where that is certain."""
    if parameter.dim() == 2 and isinstance(module, nn.Linear):
        return "mm"
    if parameter.dim() > 2 and isinstance(module, ConvNd):
        return "convolution_backward"
    return ""


def _backward_pass_autocast() -> object:
    # Importing the module only to read from it takes long; whoever compiles has imported it.
    config = sys.modules.get("torch._functorch.config")
    return getattr(config, BACKWARD_AUTOCAST, None)


def _protected(graph: Any, inputs: Any, dtype: str) -> _ProtectedRegion:
    """Return the parameters that a graph uses where it has switched autocast off, and behind."""
    protected: dict[Any, None] = {}
    behind: dict[Any, None] = {}
    products: dict[Any, str] = {}
    off: list[Any] = []
    placeholders: list[Any] = []
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            placeholders.append(node)
            continue
        name = getattr(node.target, "__name__", "")
        if name == "_enter_autocast":
            enabled = node.args[2] if len(node.args) > 2 else node.kwargs.get("enabled", True)
            # A region within one that is off is pushed as well: its exit is not that of the outer one.
            if enabled is False or off:
                off.append(node)
        elif name == "_exit_autocast":
            if off and node.args and node.args[0] is off[-1]:
                off.pop()
        elif off:
            protected.update(dict.fromkeys(node.all_input_nodes))
            if name in PRODUCTS:
                products.update(dict.fromkeys(node.all_input_nodes, PRODUCTS[name]))
        elif protected:
            behind.update(dict.fromkeys(node.all_input_nodes))
    # Placeholders and example inputs correspond one to one, in order; some inputs may be sizes.
    leaves: dict[Any, weakref.ref[torch.Tensor]] = {
        node: weakref.ref(value)
        for node, value in zip(placeholders, inputs, strict=False)
        if isinstance(value, nn.Parameter)
    }
    return _ProtectedRegion(
        [leaves[node] for node in protected if node in leaves],
        [leaves[node] for node in behind if node in leaves and node not in protected],
        dtype,
        {id(leaves[node]()): op for node, op in products.items() if node in leaves},
    )


def _infinite(gradient: torch.Tensor | None) -> bool:
    if gradient is None:
        return False
    with torch.no_grad():
        return host_scalar(gradient.isinf().sum()) > 0
