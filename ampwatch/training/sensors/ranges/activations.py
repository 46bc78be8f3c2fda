"""Outputs of leaf modules, and the gradients that come back to them, in sampled iterations."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import register_module_forward_hook

from ampwatch.training.hooks.compiling import is_traced, listen_to_compile, may_compile
from ampwatch.training.model.tensors import tensors_in
from ampwatch.training.transfer.measuring import How, Item
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from ampwatch.guard import Guard
    from ampwatch.training.hooks.taps import Listener
    from ampwatch.training.iteration.governor import Sampler
    from ampwatch.training.model.names import Names
    from ampwatch.training.transfer.measuring import Measuring

MAX_ELEMENTS = 16384
"""Elements of one tensor that are binned on a CPU: a share of 1 % is then known to within
0.16 % (two standard errors), and amax and non-finite elements are exact all the same."""

MODULES = frozenset({Topic.ACTIVATION, Topic.ACTIVATION_GRADIENT})

OUTPUT = How(most=MAX_ELEMENTS)
OUTPUT_GRADIENT = How(scaled=True, most=MAX_ELEMENTS)


class ActivationSensor:
    """Measures what leaf modules return and the gradients with respect to it.

    PyTorch's global forward hook is in place only during iterations that sample modules. It
    leaves no trace in a module that is copied, sees outputs before the hooks of the user may
    replace them, and returns ``None``. Gradients are seen by a hook on the node of the graph
    that made the output, so views, in-place operations and the tensors themselves are left
    alone. A forward that is repeated in backward (activation checkpointing) is not counted
    twice. Modules inside compiled functions are not seen; as soon as ``torch.compile`` was
    called in the process nothing is sampled, because hooks would have its code compiled again.

    Args:
        names: Names of the modules.
        sampler: Says which iterations are sampled.
        measuring: Measures.
        guard: The fail-open boundary.
        scaled: Whether gradients are multiplied by a loss scale.
    """

    name = "activations"

    def __init__(
        self, names: Names, sampler: Sampler, measuring: Measuring, guard: Guard, *, scaled: bool
    ) -> None:
        self._names = names
        self._sampler = sampler
        self._measuring = measuring
        self._guard = guard
        self._gradient = OUTPUT_GRADIENT if scaled else OUTPUT
        self._leaves: dict[int, tuple[int, str, weakref.ref[nn.Module]]] = {}
        self._seen: set[str] = set()
        self._focus: AbstractSet[str] = frozenset()
        self._handle: RemovableHandle | None = None
        self._listeners: list[Listener] = []

    def install(self) -> None:
        """Prepare for the first iteration."""
        self.begin(frozenset())

    def remove(self) -> None:
        """Take the hook out."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        for listener in self._listeners:
            listener.remove()
        self._listeners.clear()
        self._leaves.clear()

    def begin(self, focus: AbstractSet[str]) -> None:
        """An iteration begins; put the hook in place or take it out.

        Args:
            focus: Names of modules whose outputs are measured, whatever is sampled.
        """
        self._seen.clear()
        self._focus = focus
        wanted = bool(focus or self._sampler.wanted & MODULES) and not may_compile()
        if not wanted:
            self.remove()
            return
        # Each time anew: modules are added and replaced while a training runs.
        self._leaves = {
            id(module): (number, name, weakref.ref(module))
            for number, (name, module) in enumerate(self._names.leaf_modules())
        }
        if self._handle is None:
            self._handle = register_module_forward_hook(self._after_forward)
            self._listeners = listen_to_compile(self._on_compile)

    def _on_compile(self, *_: Any) -> None:
        # With the hook in place it would be compiled twice, and PyTorch warns of it.
        self._guard.run(self.remove)

    def _after_forward(self, module: nn.Module, _args: Any, output: Any) -> None:
        # A module that is being compiled or traced must not get our code into its graph.
        if is_traced():
            return
        leaf = self._leaves.get(id(module))
        if leaf is not None and leaf[2]() is module:
            self._guard.run(self.after_forward, leaf[0], leaf[1], output)

    def after_forward(self, number: int, name: str, output: Any) -> None:
        """Leaf module ``number``, called ``name``, has returned ``output``."""
        part, parts = self._sampler.part
        mine = number % parts == part
        outputs = name in self._focus or (mine and Topic.ACTIVATION in self._sampler.wanted)
        gradients = mine and Topic.ACTIVATION_GRADIENT in self._sampler.wanted
        if not (outputs or gradients) or not torch.is_grad_enabled():
            return
        tensors = [t for t in tensors_in(output) if t.is_floating_point()]
        if outputs and not self._is_repeated(name):
            items = [Item(name, name, t) for t in tensors]
            self._measuring.measure(Topic.ACTIVATION, items, OUTPUT)
        if gradients:
            for tensor in tensors:
                self._listen(name, tensor)

    def _is_repeated(self, name: str) -> bool:
        """Whether this forward runs inside a backward that has it for the second time.

        With reentrant checkpointing the first time was without gradients and not seen.
        """
        in_backward = torch._C._current_graph_task_id() != -1  # noqa: SLF001 - no public name
        if in_backward:
            return name in self._seen
        self._seen.add(name)
        return False

    def _listen(self, name: str, tensor: torch.Tensor) -> None:
        node, number = tensor.grad_fn, tensor.output_nr
        if node is None:
            return
        step, sensor = self._sampler.step, weakref.ref(self)

        def before_node(gradients: Any) -> None:
            # The user may keep the graph for longer than we look at it.
            me = sensor()
            gradient = gradients[number] if number < len(gradients) else None
            if me is not None and gradient is not None:
                me._hear(step, name, gradient)  # noqa: SLF001 - itself

        node.register_prehook(before_node)

    def _hear(self, step: int, name: str, gradient: torch.Tensor) -> None:
        if self._handle is not None and self._sampler.step == step:
            self._guard.run(self.before_node, name, gradient)

    def before_node(self, name: str, gradient: torch.Tensor) -> None:
        """``gradient`` has come back to an output of the module called ``name``."""
        self._measuring.measure(
            Topic.ACTIVATION_GRADIENT, [Item(name, name, gradient)], self._gradient
        )
