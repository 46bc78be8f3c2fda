"""Outputs of leaf modules, inputs of layers, and gradients of outputs, in sampled iterations."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ampwatch.training.hooks.events import ForwardReturned
from ampwatch.training.hooks.place import before_node
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.kernels.admission import is_plain
from ampwatch.training.model.tensors import tensors_in
from ampwatch.training.private import graph_task
from ampwatch.training.transfer.measuring import INPUT, MAX_ELEMENTS, OUTPUT, Item
from ampwatch.training.transfer.slabs import How
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from torch import nn

    from ampwatch.training.hooks.events import CompiledEntering, IterationPlanned
    from ampwatch.training.iteration.context import Context

MODULES = frozenset({Topic.ACTIVATION, Topic.ACTIVATION_GRADIENT})
"""Topics that need the hook on modules."""

OUTPUT_GRADIENT = How(scaled=True, most=MAX_ELEMENTS)


class CallListener(Protocol):
    """Is notified which modules without children are called in an iteration that measures outputs."""

    def begin(self) -> None:
        """Begin an iteration."""

    def called(self, module: nn.Module, name: str, args: Any, output: Any) -> torch.Tensor | None:
        """Take in a call; return its input if that is to be measured."""


class ActivationSensor(Sensor):
    """Measures the outputs of leaf modules, and the gradients with respect to them.

    PyTorch's global forward hook is in place only during iterations that sample modules. It
    leaves no trace in a module that is copied, gets outputs before the hooks of the user may
    replace them, and returns ``None``. Gradients are seen by a hook on the node of the graph
    that made the output, so views, in-place operations and the tensors themselves are left
    alone. A forward that is repeated in backward (activation checkpointing) is not counted
    twice. Modules inside compiled functions are not seen; as soon as compiled code runs
    nothing is sampled, because hooks would have it compiled again.

    Args:
        context: Shared parts of the training.
        calls: Is notified of calls, and says which inputs are to be measured; ``None`` for none.
    """

    name = "activations"

    def __init__(self, context: Context, calls: CallListener | None = None) -> None:
        self._calls = calls
        self._bus = context.bus
        # A guard of its own: hooks on nodes of the graph run in backward, begun by no event.
        self._guard = context.bus.guard(self.name)
        self.guard = self._guard
        self._names = context.names
        self._governor = context.governor
        self._measuring = context.measuring
        self._context = context
        self._leaves: dict[int, tuple[int, str, weakref.ref[nn.Module]]] = {}
        self._seen: set[str] = set()
        self._focus: AbstractSet[str] = frozenset()
        self._is_observing = False

    def installed(self) -> None:
        """Prepare for the first iteration."""
        self._begin(frozenset())

    def removed(self) -> None:
        """Forget the modules."""
        self._end()

    def iteration_planned(self, event: IterationPlanned) -> None:
        """Begin to observe outputs of modules, or end it."""
        self._begin(event.attention.focus)

    def _begin(self, focus: AbstractSet[str]) -> None:
        self._seen.clear()
        self._focus = focus
        if self._calls is not None:
            self._calls.begin()
        wanted = bool(focus or self._governor.wanted & MODULES) and not self._bus.runs_compiled
        if not wanted:
            self._end()
            return
        # Collected each time: modules are added and replaced while a training runs.
        self._leaves = {
            id(module): (number, name, weakref.ref(module))
            for number, (name, module) in enumerate(self._names.leaf_modules())
        }
        self._is_observing = True
        self._bus.listen(self, ForwardReturned)

    def _end(self) -> None:
        if self._is_observing:
            self._is_observing = False
            self._bus.ignore(self, ForwardReturned)
        self._leaves.clear()

    def compiled_entering(self, _event: CompiledEntering) -> None:
        """Have the hook taken out: PyTorch would warn of it, and compile the code twice."""
        self._end()

    def forward_returned(self, event: ForwardReturned) -> None:
        """Measure the output of a leaf module, or have its gradient measured."""
        leaf = self._leaves.get(id(event.module))
        if leaf is not None and leaf[2]() is event.module:
            self._measure(leaf[0], leaf[1], event)

    @property
    def measures_probes(self) -> bool:
        """Whether the open iteration measures what the program has named."""
        return not self._governor.wanted.isdisjoint(MODULES)

    def probe(self, name: str, tensor: torch.Tensor) -> None:
        """Measure a tensor that the program has named, as the output of a module of that name."""
        wanted = self._governor.wanted
        if not tensor.is_floating_point() or not is_plain(tensor):
            return
        if Topic.ACTIVATION in wanted and not self._is_repeated(name):
            self._measuring.measure(Topic.ACTIVATION, [Item(name, name, tensor)], OUTPUT)
        # Hooks on nodes stay out of graphs that compiled code has made.
        if Topic.ACTIVATION_GRADIENT in wanted and self._is_observing:
            self._listen(name, tensor)

    def not_seen(self) -> Iterator[str]:
        """Yield, in sentences, whose outputs are not measured."""
        for name in self._names.scripted():
            yield (
                f"outputs of the modules in {name or 'the model'} are not measured one by one: it is"
                " TorchScript, in which no hooks are called"
            )

    def _measure(self, number: int, name: str, event: ForwardReturned) -> None:
        part, parts = self._governor.part
        mine = number % parts == part
        flow = Topic.ACTIVATION in self._governor.wanted
        outputs = name in self._focus or (mine and flow)
        gradients = mine and Topic.ACTIVATION_GRADIENT in self._governor.wanted
        if not (flow or outputs or gradients) or not torch.is_grad_enabled():
            return
        is_first = (flow or outputs) and not self._is_repeated(name)
        # All are notified of, also where a part of the modules is measured: whose output an input is.
        if is_first and flow and self._calls is not None:
            given = self._calls.called(event.module, name, event.args, event.output)
            if mine and given is not None and given.is_floating_point():
                self._measuring.measure(Topic.ACTIVATION, [Item(name, name, given)], INPUT)
        if not (outputs or gradients):
            return
        tensors = [t for t in tensors_in(event.output) if t.is_floating_point()]
        if outputs and is_first:
            items = [Item(name, name, t) for t in tensors]
            self._measuring.measure(Topic.ACTIVATION, items, OUTPUT)
        if gradients:
            for tensor in tensors:
                self._listen(name, tensor)

    def _is_repeated(self, name: str) -> bool:
        """Whether this forward runs inside a backward that repeats it.

        With reentrant checkpointing the first run was without gradients and not seen.
        """
        in_backward = graph_task() != -1
        if in_backward:
            return name in self._seen
        self._seen.add(name)
        return False

    def _listen(self, name: str, tensor: torch.Tensor) -> None:
        node = tensor.grad_fn
        number = tensor.output_nr
        if node is None:
            return
        step = self._governor.step
        sensor = weakref.ref(self)

        def prehook(gradients: Any) -> None:
            # Weak, and by number: the user may keep the graph, and with it this function, for
            # longer than the training is observed, and the node may return fewer gradients.
            me = sensor()
            gradient = gradients[number] if number < len(gradients) else None
            if me is not None and gradient is not None:
                me._gradient_arrived(step, name, gradient)  # noqa: SLF001 - itself

        before_node(node, prehook)

    def _gradient_arrived(self, step: int, name: str, gradient: torch.Tensor) -> None:
        if self._is_observing and self._governor.step == step:
            self._guard.run(self._measure_gradient, name, gradient)

    def _measure_gradient(self, name: str, gradient: torch.Tensor) -> None:
        """Measure a gradient that has come back to an output of the module called ``name``."""
        how = OUTPUT_GRADIENT if self._context.is_scaled else OUTPUT
        self._measuring.measure(Topic.ACTIVATION_GRADIENT, [Item(name, name, gradient)], how)
