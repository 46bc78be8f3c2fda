"""Gradients of a scaled loss that the program puts into another loss: gradient penalties."""

from __future__ import annotations

import re
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.diagnosis.evidence.calls import ScaledPenalty
from ampwatch.training.devices import HOST
from ampwatch.training.hooks.bus import AWAKE
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.hooks.sources import frames, user_source
from ampwatch.training.kernels.admission import is_plain
from ampwatch.training.model.graph import nodes_of
from ampwatch.training.model.names import parameters_of
from ampwatch.training.model.scaler import scale_on_host
from ampwatch.training.private import saved_alpha, saved_exponent, scale_tensor, version_of
from ampwatch.training.scalers.factors import known_constant
from ampwatch.training.sensors.calls.scaled_roots import LINEAR, leaves_of
from ampwatch.training.transfer.readback import host_scalar

if TYPE_CHECKING:
    from ampwatch.training.hooks import events as on
    from ampwatch.training.iteration.context import Context

MARK = "ampwatch: taken of a scaled loss"
"""Key in the metadata of a node of the graph. Metadata hold neither tensors nor nodes, and end with the node."""

MAX_NODES = 512
"""Nodes nearest to a loss among which gradients are looked for."""

KEEPS_FACTOR = LINEAR | {"Abs", "LinalgVectorNorm", "MseLoss", "Norm", "Pow", "Relu", "Sqrt"}
"""Names of nodes whose results grow with what they are given."""

OF_TORCH = re.compile(r"(\w+)Backward\d+")
"""Name of a node of PyTorch's own. That of a program's ``autograd.Function`` ends without a number."""

MIN_WEIGHT = 1 / 16
"""Smallest product of the numbers on the way from a loss to gradients. What is divided by a scale of ``MIN_SCALE``
(`diagnosis/calls/api_misuse.py`) is larger only where its weight is 1024 or more."""


class _Taken(NamedTuple):
    source: str  # ``file:line`` of the call that has taken it
    gradient: weakref.ref[torch.Tensor]
    version: int  # of the gradient

    def is_as_it_was(self) -> bool:
        """Whether nobody is known to have written to the gradient."""
        gradient = self.gradient()
        return gradient is None or version_of(gradient) == self.version


class PenaltySensor(Sensor):
    """Finds gradients that ``torch.autograd.grad`` took of a scaled loss behind a loss that goes back scaled.

    They are multiplied by the scale. Only one way counts from the loss to the gradients: through ops that keep a
    factor, and numbers that a program is written with, such as 10 or 0.5, whose product is no reciprocal of a scale.

    Cost: nothing where no gradients are taken with a graph; else 10 us, and up to 1 ms for the loss.
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
        self._leaves: set[int] = set()

    def woken(self) -> None:
        """Begin anew."""
        self._forget()

    def removed(self) -> None:
        """Forget everything."""
        self._forget()

    def _forget(self) -> None:
        self.is_dormant = True
        self._leaves.clear()

    def gradients_taken(self, event: on.GradientsTaken) -> None:
        """Mark gradients of a loss that ``scaler.scale`` has returned."""
        roots = [output.grad_fn for output in event.outputs if isinstance(output, torch.Tensor)]
        if len(roots) < len(event.outputs) or not all(map(self._is_scaled, roots)):
            return
        if not _are_ones(event.starts):
            return
        if self.is_dormant:
            self._bus.wake(AWAKE)
            self.is_dormant = False
        source = user_source()
        for gradient in event.gradients:
            if gradient is not None and gradient.grad_fn is not None:
                taken = _Taken(source, weakref.ref(gradient), version_of(gradient))
                gradient.grad_fn.metadata[MARK] = taken

    def backward_began(self, event: on.BackwardBegan) -> None:
        """Look for marked gradients behind a scaled loss."""
        if any(gradient is not None for gradient in event.gradients):
            return
        for root in filter(self._is_scaled, nodes_of(event.tensors)):
            node = _taken_behind(root)
            if node is not None:
                self._source = node.metadata[MARK].source
                self._leaves = leaves_of([node]) or set()

    def zeroed(self, event: on.Zeroed) -> None:
        """Leave out the parameters whose gradients are thrown away."""
        self._leaves.difference_update(map(id, parameters_of(event.owner)))

    def step_began(self, event: on.StepBegan) -> None:
        """Report the first step with such gradients."""
        if event.scaler is not self._scaler or self._leaves.isdisjoint(
            map(id, parameters_of(event.optimizer))
        ):
            return
        self._leaves.clear()
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

    def _is_scaled(self, node: Any) -> bool:
        """Whether a node is the product with the scale."""
        if node is None or _kind_of(node) != "Mul":
            return False
        constant, scale = known_constant(node), scale_tensor(self._scaler)
        if constant is None or scale is None:
            return False
        return constant.data_ptr() == scale.data_ptr()


def _are_ones(starts: tuple[Any, ...]) -> bool:
    """Whether backward begins with ones, as without ``grad_outputs``."""
    given = [start for start in starts if start is not None]
    if all(is_plain(start) and start.device.type == HOST for start in given):
        return all(bool((start == 1).all()) for start in given)
    # Nobody waits for a device, or for other ranks. PyTorch has made them, or the program has given them.
    calls = (f for f in frames() if f.f_globals.get("__name__") == "torch.autograd")
    return any(f.f_code.co_name == "grad" and f.f_locals.get("grad_outputs") is None for f in calls)


def _taken_behind(root: Any) -> Any:
    """Return a node of marked gradients that a loss grows with; ``None`` without one."""
    waiting = deque((child, 1.0) for child, _ in root.next_functions)
    seen: dict[int, Any] = {}
    while waiting and len(seen) < MAX_NODES:
        node, weight = waiting.popleft()
        if node is None or id(node) in seen:
            continue
        seen[id(node)] = node
        taken = node.metadata.get(MARK)
        if taken is not None:
            return node if taken.is_as_it_was() else None
        weight *= _weight_of(node)
        if weight >= MIN_WEIGHT:
            waiting += [(child, weight) for child, _ in node.next_functions]
    return None


def _kind_of(node: Any) -> str:
    name = OF_TORCH.fullmatch(node.name())
    return "" if name is None else name[1]


def _weight_of(node: Any) -> float:
    """Return the number that a node multiplies by; 0 where it may be anything."""
    kind = _kind_of(node)
    if kind in ("Add", "Sub", "Rsub"):
        return float(saved_alpha(node) == 1)
    if kind == "Pow":
        exponent = saved_exponent(node)
        return float(isinstance(exponent, (int, float)) and exponent >= 1)
    if kind not in ("Mul", "Div"):
        return float(kind in KEEPS_FACTOR)
    first, *others = (child for child, _ in node.next_functions)
    if kind == "Mul" and first is not None and others == [first]:
        return 1.0  # a square
    number = _number(node)
    # A tensor, be it of a single element, may be a norm of the gradients.
    if number is None or (first is None and kind == "Div") or None not in (first, *others):
        return 0.0
    return number if kind == "Mul" else 1.0 / number


def _number(node: Any) -> float | None:
    """Return the magnitude of a number as programs are written with, of up to three digits."""
    constant = known_constant(node)
    if constant is None or constant.dim() or constant.device.type != HOST:
        return None
    if constant.dtype not in (torch.float64, torch.int64):  # as a Python number is
        return None
    number = abs(host_scalar(constant.double()))
    return number if number and float(f"{number:.3g}") == number else None
