"""A replica of a model: it shares the memory of the parameters, and has everything else for itself."""

from __future__ import annotations

import copy
import logging
import re
from collections import Counter, OrderedDict, defaultdict, deque
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ampwatch.guard import is_of_a_signal
from ampwatch.training.hooks.roots import unwrapped
from ampwatch.training.kernels.admission import is_dtensor
from ampwatch.training.model.names import canonical
from ampwatch.training.replay.effects import effect_of
from ampwatch.training.replay.kept_calls import (
    ATOMS,
    ReplayRefusedError,
    is_plain_function,
)

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

OWN_WAYS = frozenset(
    {
        "__copy__",
        "__deepcopy__",
        "__del__",
        "__reduce__",
        "__reduce_ex__",
        "__getstate__",
        "__setstate__",
    }
)
"""Methods of a class by which its objects are copied, or end, otherwise than by their attributes."""

SHARED = (*ATOMS, logging.Logger, re.Pattern)
"""Types that a replica shares with its model."""


class ReplicaModel:
    """A copy of a model for one replay.

    Parameters are other objects of the same memory, so that gradients of the replica are its own.
    Buffers, and whatever else the modules keep, are copied. Hooks of the user stay behind: they may
    write logs. Those of PyTorch itself, which compute weights, come along. What ``torch.compile`` has
    wrapped is the module itself again.

    Args:
        model: The model, without wrappers.
        max_bytes: What copies of its tensors may take. Unit: B.

    Attributes:
        model: The replica.
        nbytes: Bytes of the copies. Unit: B.
        names: Name of each module of the replica, by its identity, relative to the model.
        parameters: The parameters by name.

    Raises:
        ReplayRefusedError: If the model cannot be copied, or its copy would be too large.
    """

    def __init__(self, model: nn.Module, max_bytes: int) -> None:
        _check_alone(model)
        _check_forwards(model)
        effect = effect_of(model)
        if effect:
            why = f"its code {effect}"
            raise ReplayRefusedError(why)
        memo: dict[int, Any] = {}
        names = {id(module): canonical(name, model) for name, module in model.named_modules()}
        self.parameters: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():
            self.parameters[canonical(name, model)] = memo[id(parameter)] = _alias(parameter)
        _leave_hooks(model, memo)
        _Inventory(memo, max_bytes).take(model)
        self.model = _copied(model, memo)
        if any(id(module) in names for module in self.model.modules()):
            why = "a copy of it has parts of the original"
            raise ReplayRefusedError(why)
        self.names = {id(memo[key]): name for key, name in names.items() if key in memo}
        aliases = {id(alias) for alias in self.parameters.values()}
        self._own = [
            value
            for value in memo.values()
            if isinstance(value, torch.Tensor) and id(value) not in aliases
        ]

        self.nbytes = sum(tensor.nbytes for tensor in self._own)

    def own_tensors(self) -> Iterator[Tensor]:
        """Yield the tensors that are copies: the replica may write to them."""
        yield from self._own


def _check_alone(model: nn.Module) -> None:
    """Check that the model of this process is all of it: then its forward needs no other process.

    A forward that communicates would wait for processes that replay nothing.

    Raises:
        ReplayRefusedError: If modules keep a group of processes, or parameters are parts of others.
    """
    if not torch.distributed.is_available():
        return
    kinds = (torch.distributed.ProcessGroup,)
    for module in model.modules():
        if any(isinstance(value, kinds) for value in vars(module).values()):
            why = f"its {type(module).__name__} communicates with other processes"
            raise ReplayRefusedError(why)
    if any(is_dtensor(parameter) for parameter in model.parameters()):
        why = "its parameters are spread over processes, and its forward communicates with them"
        raise ReplayRefusedError(why)


def _check_forwards(model: nn.Module) -> None:
    """Check that no forward would run the model itself instead of its replica.

    Raises:
        ReplayRefusedError: If one was replaced by a function on the instance: a copy of the module has
            the same function, and what that refers to is the model; or is no Python, in which calls
            of modules cannot be followed.
    """
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            why = f"its {module.original_name} is TorchScript"
            raise ReplayRefusedError(why)
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


class _Inventory:
    """Goes through what modules keep, and copies its tensors.

    ``deepcopy`` runs methods of whatever it meets, and these may share what they should copy, draw random
    numbers, or free something twice. So only what is known is copied: modules, plain containers,
    tensors, arrays, and objects that are nothing but their attributes.

    Args:
        memo: Gets the copies of tensors.
        max_bytes: What tensors and arrays may take together. Unit: B.
    """

    def __init__(self, memo: dict[int, Any], max_bytes: int) -> None:
        self._memo = memo
        self._left = self._max_bytes = max_bytes
        self._seen: set[int] = set()

    def take(self, value: Any) -> None:
        """Go through a value.

        Raises:
            ReplayRefusedError: If it is too large, or may do anything when it is copied.
        """
        if isinstance(value, SHARED) or is_plain_function(value) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, torch.Tensor):
            self._take_tensor(value)
        elif isinstance(value, (FunctionType, MethodType)):
            self._take_function(value)
        elif type(value) in (list, tuple, set, frozenset, deque):
            for part in value:
                self.take(part)
        elif type(value) in (dict, OrderedDict, defaultdict, Counter):
            for part in (*value, *value.values()):
                self.take(part)
        elif type(value).__module__ == "numpy" and isinstance(getattr(value, "nbytes", None), int):
            self._count(value.nbytes)
        else:
            self._take_object(value)

    def _take_function(self, value: FunctionType | MethodType) -> None:
        """Go through what a function refers to; deepcopy has it refer to the original."""
        if isinstance(value, MethodType):
            self.take(value.__self__)
        elif value.__module__.partition(".")[0] != "torch":
            why = f"it keeps a function that refers to other objects ({value.__qualname__})"
            raise ReplayRefusedError(why)

    def _take_object(self, value: Any) -> None:
        for kind in type(value).__mro__[:-1]:
            own = OWN_WAYS & vars(kind).keys()
            if own and kind.__module__.partition(".")[0] != "torch":
                why = f"it keeps a {type(value).__name__}, which has a way of its own to be copied"
                raise ReplayRefusedError(why)
        for name, part in getattr(value, "__dict__", {}).items():
            if name not in HOOKS:
                self.take(part)

    def _take_tensor(self, tensor: Tensor) -> None:
        if id(tensor) in self._memo:
            return
        if not (type(tensor) in PLAIN and tensor.layout is torch.strided):
            why = f"it keeps tensors of the type {type(tensor).__name__}, {tensor.layout}"
            raise ReplayRefusedError(why)
        self._count(tensor.nbytes)
        # One that a forward has left behind is of a graph, and deepcopy refuses it.
        self._memo[id(tensor)] = tensor.detach().clone()

    def _count(self, nbytes: int) -> None:
        self._left -= nbytes
        if self._left < 0:
            why = f"copies of its buffers would take more than {self._max_bytes} bytes (setting `memory_bytes`)"
            raise ReplayRefusedError(why)


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
        if is_of_a_signal(error):
            raise
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
