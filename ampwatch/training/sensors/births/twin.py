"""A twin of a model: it shares the memory of the parameters, and has everything else for itself."""

from __future__ import annotations

import copy
from collections import OrderedDict
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ampwatch.training.hooks.roots import unwrapped
from ampwatch.training.model.names import canonical
from ampwatch.training.sensors.births.kept_calls import ReplayRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
"""Attributes of a module that hold its hooks. Others that say how they are called go by their ids."""

PLAIN = (torch.Tensor, nn.Parameter)
"""Types of tensors whose memory is all that they are."""

MAX_DEPTH = 4
"""Levels of containers in an attribute of a module in which tensors are searched for."""


class Twin:
    """A copy of a model for one replay.

    Parameters are other objects of the same memory, so that gradients of the twin are its own.
    Buffers, and whatever else the modules keep, are copied. Hooks of the user stay behind: they may
    write logs. Those of PyTorch itself, which compute weights, come along. What ``torch.compile`` has
    wrapped is the module itself again.

    Args:
        model: The model, without wrappers.
        max_bytes: What copies of its tensors may take. Unit: B.

    Attributes:
        model: The twin.
        names: Name of each module of the twin, by its identity, relative to the model.
        parameters: The parameters by name.

    Raises:
        ReplayRefusedError: If the model cannot be copied, or its copy would be too large.
    """

    def __init__(self, model: nn.Module, max_bytes: int) -> None:
        _check_forwards(model)
        memo: dict[int, Any] = {}
        names = {id(module): name for name, module in model.named_modules()}
        self.parameters: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():
            self.parameters[canonical(name)] = memo[id(parameter)] = _alias(parameter)
        _leave_hooks(model, memo)
        _copy_tensors(model, memo, max_bytes)
        self.model = _copied(model, memo)
        self.names = {id(memo[key]): canonical(name) for key, name in names.items() if key in memo}
        aliases = {id(alias) for alias in self.parameters.values()}
        self._own = [
            value
            for value in memo.values()
            if isinstance(value, torch.Tensor) and id(value) not in aliases
        ]

    def own_tensors(self) -> Iterator[Tensor]:
        """Yield the tensors that are copies: the twin may write to them."""
        yield from self._own


def _check_forwards(model: nn.Module) -> None:
    """Check that no forward would run the model itself instead of its twin.

    Raises:
        ReplayRefusedError: If one was replaced by a function on the instance: a copy of the module has
            the same function, and what that refers to is the model.
    """
    for module in model.modules():
        forward = module.__dict__.get("forward")
        if (
            forward is not None
            and not isinstance(forward, MethodType)
            and unwrapped(module) is module
        ):
            why = f"the forward of a {type(module).__name__} was replaced on the instance"
            raise ReplayRefusedError(why)


def _leave_hooks(model: nn.Module, memo: dict[int, Any]) -> None:
    """Have hooks of the user stay behind."""
    for module in model.modules():
        for attribute in HOOKS:
            hooks = module.__dict__.get(attribute)
            if hooks:
                kept = [(key, hook) for key, hook in hooks.items() if _is_of_torch(hook)]
                memo[id(hooks)] = OrderedDict(kept)


def _copy_tensors(model: nn.Module, memo: dict[int, Any], max_bytes: int) -> None:
    """Copy the tensors of the modules.

    Raises:
        ReplayRefusedError: If they are too large, or of a class of their own.
    """
    copied = 0
    for module in model.modules():
        for tensor in _tensors_of(module):
            if id(tensor) in memo:
                continue
            is_tensor = isinstance(tensor, torch.Tensor)
            if is_tensor and not (type(tensor) in PLAIN and tensor.layout is torch.strided):
                why = f"it keeps tensors of the type {type(tensor).__name__}, {tensor.layout}"
                raise ReplayRefusedError(why)
            copied += tensor.nbytes
            if copied > max_bytes:
                why = f"copies of its buffers would take more than {max_bytes} bytes (setting `replay_bytes`)"
                raise ReplayRefusedError(why)
            if not is_tensor:
                continue  # an array: deepcopy takes it along
            # One that a forward has left behind is of a graph, and deepcopy refuses it.
            memo[id(tensor)] = tensor.detach().clone()


def _copied(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Copy all that is left to copy.

    Raises:
        ReplayRefusedError: If something cannot be copied.
    """
    wrapped = [module for module in model.modules() if unwrapped(module) is not module]
    try:
        # From the inside out: a wrapper may be in what another one wraps.
        for module in reversed(wrapped):
            memo[id(module)] = copy.deepcopy(unwrapped(module), memo)
        return copy.deepcopy(model, memo)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        words = f"{type(error).__name__}: {error}".partition("\n")[0]
        why = f"it cannot be copied ({words[:160]})"
        raise ReplayRefusedError(why) from error


def _alias(parameter: Tensor) -> Tensor:
    """Return another parameter of the same memory.

    Raises:
        ReplayRefusedError: If it is of a class of its own: then it may be a shard, or not be there.
    """
    if type(parameter) is not nn.Parameter or type(parameter.data) is not torch.Tensor:
        kind = type(parameter) if type(parameter) is not nn.Parameter else type(parameter.data)
        why = f"its parameters are of the type {kind.__name__}"
        raise ReplayRefusedError(why)
    alias = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
    alias.__dict__.update(parameter.__dict__)
    return alias


def _is_of_torch(hook: Any) -> bool:
    """Whether a hook is one of PyTorch's own, such as those that normalize weights."""
    kind = hook if isinstance(hook, FunctionType) else type(hook)
    return kind.__module__.partition(".")[0] == "torch"


def _tensors_of(module: nn.Module) -> Iterator[Any]:
    """Yield the buffers of a module, and tensors and arrays that it keeps in its attributes."""
    for name, value in module.__dict__.items():
        if name not in ("_parameters", "_modules", *HOOKS):
            yield from _tensors_in(value, MAX_DEPTH)


def _tensors_in(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, torch.Tensor) or isinstance(getattr(value, "nbytes", None), int):
        yield value
    elif depth and isinstance(value, (list, tuple, set)):
        for part in value:
            yield from _tensors_in(part, depth - 1)
    elif depth and isinstance(value, dict):
        for part in value.values():
            yield from _tensors_in(part, depth - 1)
