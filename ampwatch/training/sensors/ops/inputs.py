"""Whether what a model is given is finite."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from ampwatch.diagnosis.evidence.births import BadInput
from ampwatch.training.hooks.compiling import is_traced, listen_to_compile, may_compile
from ampwatch.training.hooks.sources import user_source
from ampwatch.training.model.tensors import tensors_in
from ampwatch.training.ops.operands import FLOATS, is_dense
from ampwatch.training.transfer.losses import is_capturing

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn
    from torch.utils.hooks import RemovableHandle

    from ampwatch.guard import Guard
    from ampwatch.training.hooks.taps import Listener
    from ampwatch.training.model.names import Names
    from ampwatch.training.transfer.deferred import Deferred


class InputSensor:
    """Adds up the positional inputs of the watched models, in the iterations it is told to.

    A bad batch is gone when the next iteration is traced op by op: this is the one look at values
    that has to come before anything is known to be wrong. Negative infinity alone is a mask.

    Args:
        names: The watched models.
        deferred: Reads values.
        observe: Told of each ``BadInput``.
        guard: The fail-open boundary.

    Cost:
        One pass over the inputs, no sync; 0.5 us a call of any module while it is on.
    """

    name = "inputs"

    def __init__(
        self,
        names: Names,
        deferred: Deferred,
        observe: Callable[[object], None],
        guard: Guard,
    ) -> None:
        self._names = names
        self._deferred = deferred
        self._observe = observe
        self._guard = guard
        self._step = 0
        self._models: dict[int, weakref.ref[nn.Module]] = {}
        self._handle: RemovableHandle | None = None
        self._listeners: list[Listener] = []

    def install(self) -> None:
        """Nothing to place: the iterations that are looked at say so themselves."""

    def remove(self) -> None:
        """Take the hook out."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        for listener in self._listeners:
            listener.remove()
        self._listeners.clear()
        self._models.clear()

    def begin(self, step: int, *, wanted: bool) -> None:
        """Iteration ``step`` begins; put the hook in place or take it out."""
        self._step = step
        if not wanted or may_compile():
            self.remove()
            return
        if self._handle is None:
            self._models = {id(model): weakref.ref(model) for model in self._names.models()}
            self._handle = register_module_forward_pre_hook(self._before_forward)
            self._listeners = listen_to_compile(self._on_compile)

    def _on_compile(self, *_: Any) -> None:
        # PyTorch warns of hooks that are in place when something compiled runs.
        self._guard.run(self.remove)

    def _before_forward(self, module: nn.Module, args: Any) -> None:
        known = self._models.get(id(module))
        if known is not None and known() is module and not is_traced():
            self._guard.run(self.before_forward, args)

    def before_forward(self, args: Any) -> None:
        """A watched model is called with ``args``."""
        # What has a node was computed by a model: by another one that is watched, for one.
        given = [t for t in tensors_in(args) if t.dtype in FLOATS and _is_plain(t)]
        tensors = [t for t in given if t.grad_fn is None]
        if not tensors or not torch.is_grad_enabled() or any(map(is_capturing, tensors)):
            return
        step, source, numel = self._step, user_source(), sum(t.numel() for t in tensors)

        def judge(read: list[float]) -> None:
            (value,) = read
            if not value < math.inf:
                self._observe(BadInput(step, math.isnan(value), numel, source))

        for device in {t.device: None for t in tensors}:
            with torch.no_grad():
                # A tensor without NaN and positive infinity has a finite maximum, or one of -inf.
                each = [t.detach().amax().float() for t in tensors if t.device == device]
                largest = torch.stack(each).amax()
            self._deferred.read(largest.reshape(1), judge)


def _is_plain(tensor: Tensor) -> bool:
    """Whether it has values that can be read here, unlike fake tensors and those of ``vmap``."""
    return (
        is_dense(tensor)
        and tensor.numel() > 0
        and type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)  # noqa: SLF001 - no public name for it
    )
