"""The tensors and numbers that an op has read and written, and parts of them."""

from __future__ import annotations

import cmath
import math
import re
from typing import TYPE_CHECKING, Any

import torch

from ampwatch.numerics.units.ops import Phase
from ampwatch.training.hooks.sources import is_in_optimizer, is_in_users_hook
from ampwatch.training.kernels.admission import is_plain, local_part
from ampwatch.training.model.tensors import all_tensors_in
from ampwatch.training.ops.call import tensors_among, written_by
from ampwatch.training.private import StateOfCaller, current_node

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from ampwatch.training.ops.call import OpCall
    from ampwatch.training.ops.events import OpPlace

AVERAGES = ("running_mean", "running_var")


def made_by(call: OpCall) -> list[Tensor]:
    """Return what an op has returned, or, if that is nothing, what it has written.

    Tensors whose memory is hidden by a subclass are left out.
    """
    made = tensors_among((call.out,)) or written_by(call)
    return [tensor for tensor in made if local_part(tensor) is tensor]


def received_by(call: OpCall) -> list[Tensor]:
    """Return the tensors that a collective writes before it is over.

    Of one that returns none it is the first argument with tensors; no schema says so.
    """
    first = next((value for value in call.args if all_tensors_in((value,))), None)
    found = all_tensors_in((call.out,)) or all_tensors_in((first,))
    return [tensor for tensor in found if local_part(tensor) is tensor]


def sent_by(call: OpCall) -> list[Tensor]:
    """Return the tensors that a collective was given."""
    return [tensor for tensor in all_tensors_in(call.args) if local_part(tensor) is tensor]


def overwritten_by(call: OpCall) -> list[Tensor]:
    """Return all tensors that an op has written among its arguments, returned or not."""
    written = written_by(call) if call.info.written else []
    if "batch_norm" in call.info.name:
        # The schemas of most of them do not say that they write these, and when.
        given = dict(zip(call.info.arguments, call.args, strict=False)) | call.kwargs
        if given.get("training", given.get("train", False)):
            written += tensors_among([given.get(name) for name in AVERAGES])
    return written


def read_by(call: OpCall) -> list[Tensor]:
    """Return the tensors that an op was given to read."""
    given = tensors_among(call.args)
    if call.kwargs:
        given += tensors_among([v for name, v in call.kwargs.items() if name != "out"])
    return given


def made_unseen(place: OpPlace, read: Iterable[Tensor]) -> list[Tensor]:
    """Return what an op has read that code may have made of which no op is seen.

    Outside of such code that is whatever was computed: what it has made, and nobody saw being made.
    """
    return [*place.unseen, *(tensor for tensor in read if not tensor.is_leaf)]


def nonfinite_number(call: OpCall) -> float | None:
    """Return the first Python number among the arguments that is not finite, if any."""
    for value in (*call.args, *call.kwargs.values()):
        if isinstance(value, (float, complex)) and not cmath.isfinite(value):
            return value if isinstance(value, float) else abs(value)
    return None


def second_number(call: OpCall) -> float:
    """Return the Python number that an op computes with as its second argument; NaN without one."""
    names, number = call.info.arguments, call.args[1] if len(call.args) > 1 else None
    # Of softmax it is a dimension.
    is_operand = len(names) > 1 and names[1] in ("other", "exponent", "scalar")
    return float(number) if is_operand and isinstance(number, (int, float)) else math.nan


def has_autocast(device_type: str) -> bool | None:
    """Whether autocast was on where the op was called that has just returned.

    Returns:
        ``None`` for a type of device that PyTorch has no autocast for.
    """
    # Below the dispatcher autocast is excluded: only the state in which the op was called tells.
    with StateOfCaller():
        try:
            return torch.is_autocast_enabled(device_type)
        except RuntimeError:
            return None


def computing_node() -> Any:
    """Return the node of the graph that computes; ``None`` in a hook beside it, where gradients are sent."""
    # AccumulateGrad computes nothing of the model, and runs the hooks of parameters: DDP and FSDP
    # communicate in them.
    node = current_node()
    return None if node is None or "AccumulateGrad" in node.name() else node


def op_of(node: Any) -> str:
    """Return the base name of the op whose derivative a node of PyTorch's own computes."""
    name = re.sub(r"Backward\d*$", "", type(node).__name__)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def is_beside_graph(phase: Phase, *, is_inside: bool) -> bool:
    """Whether the user's code computes with gradients: in a hook of backward, or after it.

    Not a custom function, whose backward is a node, nor a forward pass that is repeated.
    """
    if is_inside or phase not in (Phase.BACKWARD, Phase.OPTIMIZER):
        return False
    if phase is Phase.OPTIMIZER:
        return not is_in_optimizer()
    return not is_custom(current_node()) and is_in_users_hook()


def is_custom(node: Any) -> bool:
    """Whether a node of the graph is that of a ``torch.autograd.Function``."""
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def has_grad(*values: Any) -> bool:
    """Whether autograd records an op on these: then it is a part of the computation."""
    return torch.is_grad_enabled() and any(getattr(v, "requires_grad", False) for v in values)


def names_by_address(named: Iterable[tuple[str, torch.Tensor]]) -> dict[int, str]:
    """Return the names of tensors by where they lie, of those that lie anywhere."""
    return {tensor.data_ptr(): name for name, tensor in named if is_plain(tensor)}


def shapes_by_address(tensors: Iterable[torch.Tensor | None]) -> dict[int, torch.Size]:
    """Return the shapes of tensors by where they lie, of those that lie anywhere."""
    return {t.data_ptr(): t.shape for t in tensors if t is not None and is_plain(t)}


def place_name(place: OpPlace, buffer: str | None = None) -> str:
    """Return what a finding calls the place of an op.

    Args:
        place: The place.
        buffer: Name of the buffer that the op writes to, if it is one.

    Returns:
        The buffer, else the module, or ``loss`` outside of all.
    """
    if buffer:
        return f"buffer:{buffer}"
    if place.is_inside or place.module or place.phase is Phase.BACKWARD:
        return place.module
    return "loss"


def head(values: torch.Tensor, most: int) -> torch.Tensor:
    """Return the first elements in their order, up to ``most``, in one dimension.

    Cost: a copy of what is returned at most, unless the last dimension alone is longer.
    """
    while values.numel() > most and values.ndim > 1:
        values = values[0]
    return values.reshape(-1)[:most]


def thinned(values: torch.Tensor, most: int) -> torch.Tensor:
    """Return elements spread over a tensor, about ``most`` at most, in one dimension.

    Two tensors of one shape are thinned alike, however they are laid out.

    Cost: a copy of what is returned.
    """
    for dim in range(values.ndim):
        excess = values.numel() / most
        if excess <= 1.0:
            break
        step = min(values.shape[dim], math.ceil(excess))
        values = values[(slice(None),) * dim + (slice(None, None, step),)]
    return values.reshape(-1)
