"""Origin of the first number that is not finite: a slow reference that knows nothing of ampwatch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

WRITTEN = ("masked_fill", "full", "fill", "where", "empty", "new_empty", "scalar_tensor", "lift")
"""Ops that put an infinity where the program says so."""


ORIGINATE = frozenset(
    {
        "forward_overflow",
        "silent_overflow",
        "masked_row_nan",
        "forward_nan_underflow",
        "backward_nonfinite_any_scale",
        "fp8_scale_nonfinite",
        "reduce_overflow",
    }
)
"""Kinds of findings in which one op makes something that is not finite of what is."""


class Origin(NamedTuple):
    """An op with finite inputs and an output that is not; backward has no place in a module."""

    where: str
    op: str
    phase: str


class Origins(TorchDispatchMode):
    """Lists origins in the order in which they happen.

    Args:
        models: The modules whose names are places.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.seen: list[Origin] = []
        self._stack: list[tuple[str, nn.Module]] = []
        prefixed = len(models) > 1
        self._handles = [
            handle
            for index, model in enumerate(models)
            for name, module in model.named_modules(prefix=str(index) if prefixed else "")
            for handle in (
                module.register_forward_pre_hook(self._entering(name)),
                module.register_forward_hook(self._leaving(), always_call=True),
            )
        ]

    def _entering(self, name: str) -> Any:
        stack = self._stack

        def enter(module: nn.Module, _args: Any) -> None:
            stack.append((name, module))

        return enter

    def _leaving(self) -> Any:
        # A function, unlike a bound method, is not copied with a model that is deep-copied.
        stack = self._stack

        def leave(*_: Any) -> None:
            stack.pop()

        return leave

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        given = [_trouble(x) for x in tree_leaves((args, kwargs))]
        out = func(*args, **kwargs)
        made = [_trouble(x) for x in tree_leaves(out)]
        op = func.overloadpacket.__name__
        is_softmax = op in ("_softmax", "_log_softmax")
        is_origin = any(made) and not any(given)
        # A masked score is meant to be infinite; what softmax makes of it is not meant to be NaN.
        is_origin |= is_softmax and "nan" in made and "nan" not in given
        if is_origin and not op.startswith(WRITTEN):
            self.seen.append(self._origin(op))
        return out

    def _origin(self, op: str) -> Origin:
        if torch._C._current_graph_task_id() != -1:
            return Origin("", op, "backward")
        if not self._stack:
            return Origin("loss", op, "forward")
        name, module = self._stack[-1]
        return Origin(name, op, "forward" if module.training else "eval")


def _trouble(x: object) -> str:
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or not x.numel():
        return ""
    if x.dtype.itemsize == 1:
        x = x.float()
    if bool(x.isnan().any()):
        return "nan"
    return "inf" if bool(x.isinf().any()) else ""
