"""Calls of the watched models, kept until it is known whether their step has failed."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import is_dataclass
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.training.devices import HOST, autocast_types
from ampwatch.training.kernels.admission import is_wrapped
from ampwatch.training.private import is_view, storage_key, version_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

ATOMS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type,
    Enum,
    PurePath,
    slice,
    range,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
)
"""Types of arguments that nobody can change."""

MAX_DEPTH = 8
"""Levels of nesting of an argument. A deeper one is not kept."""


class ReplayRefusedError(Exception):
    """A call cannot be made again, or not without an effect on the training: why, in words.

    Attributes:
        is_lasting: Whether other calls of the training cannot be either.
    """

    def __init__(self, why: str, *, is_lasting: bool = True) -> None:
        super().__init__(why)
        self.is_lasting = is_lasting


class Autocast(NamedTuple):
    """State of autocast for one type of device.

    Attributes:
        device_type: The type.
        dtype: The dtype that matrices are multiplied in.
    """

    device_type: str
    dtype: torch.dtype


class Draws(NamedTuple):
    """State of PyTorch's random numbers.

    Attributes:
        host: Of the generator of the host.
        devices: Of those of the devices that the training is on.
    """

    host: Tensor
    devices: tuple[tuple[torch.device, Tensor], ...] = ()

    @classmethod
    def now(cls, devices: Sequence[torch.device]) -> Draws:
        """Return the state of now. No sync: the state of a device's generator is on the host."""
        there = [device for device in devices if device.type != HOST]
        states = [
            (device, torch.get_device_module(device).get_rng_state(device)) for device in there
        ]
        return cls(torch.get_rng_state(), tuple(states))

    def restore(self) -> None:
        """Have the next random numbers be those that came after this state."""
        torch.set_rng_state(self.host)
        for device, state in self.devices:
            torch.get_device_module(device).set_rng_state(state, device)


class KeptCall:
    """One call of a model: references to what it was given, and the state it was made in.

    No value is copied. Of a tensor with a graph a detached view is kept, so that the graph does not
    stay alive. The version counter of each tells whether somebody has written to it since.

    Args:
        model: The model.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        devices: Devices whose random numbers it may draw.

    Attributes:
        model: The model.
        autocast: Where autocast was on.
        draws: The state of random numbers.
        nbytes: Bytes of memory that it keeps from being freed. Unit: B.
        is_fed: Whether a tensor among its arguments was computed with gradients, and is no data.
        returns_loss: Whether it has returned a scalar that backward can begin with.

    Raises:
        ReplayRefusedError: If an argument is of a type that cannot be kept.

    Cost: 10 us in a loop, some 110 between the kernels of a training; 1 us a tensor more.
    """

    def __init__(
        self,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        devices: Sequence[torch.device],
    ) -> None:
        self.model = model
        self._tensors: list[tuple[Tensor, int]] = []
        self.is_fed = False
        self._args = [self._kept(arg) for arg in args]
        self._kwargs = {name: self._kept(arg) for name, arg in kwargs.items()}
        self.autocast = tuple(
            Autocast(device_type, torch.get_autocast_dtype(device_type))
            for device_type in autocast_types()
            if torch.is_autocast_enabled(device_type)
        )
        self.draws = Draws.now(devices)
        # A view of data that is there anyway keeps nothing but itself.
        sizes = {
            storage_key(t.untyped_storage()): t.nbytes
            if is_view(t)
            else t.untyped_storage().nbytes()
            for t, _ in self._tensors
        }
        self.nbytes = sum(sizes.values())
        self.returns_loss = False

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments as they were, in containers of their own.

        Raises:
            ReplayRefusedError: If somebody has written to one of them since.
        """
        if any(version_of(tensor) != version for tensor, version in self._tensors):
            why = "its inputs were changed in place"
            raise ReplayRefusedError(why, is_lasting=False)
        return [_again(a) for a in self._args], {
            name: _again(a) for name, a in self._kwargs.items()
        }

    def _kept(self, value: Any, depth: int = MAX_DEPTH) -> Any:
        if isinstance(value, torch.Tensor):
            return self._kept_tensor(value)
        if _is_atom(value):
            return value
        return _rebuilt(value, depth, lambda part: self._kept(part, depth - 1))

    def _kept_tensor(self, tensor: Tensor) -> Tensor:
        if tensor.is_inference():
            why = "its inputs come from inference mode, and cannot be watched for changes"
            raise ReplayRefusedError(why)
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            why = f"its inputs are of the type {type(tensor).__name__}"
            raise ReplayRefusedError(why, is_lasting=False)
        if tensor.layout is not torch.strided or tensor.is_nested:
            why = "its inputs are sparse or nested"
            raise ReplayRefusedError(why)
        if is_wrapped(tensor):
            why = "it was called by a transform of torch.func"
            raise ReplayRefusedError(why, is_lasting=False)
        # Of the same memory and with the same version counter, but of no graph. Most are of none.
        kept = tensor if tensor.grad_fn is None else tensor.detach()
        self.is_fed = self.is_fed or tensor.grad_fn is not None
        self._tensors.append((kept, version_of(kept)))
        return kept


def is_plain_function(value: Any) -> bool:
    """Whether it is a function that refers to nothing but what is global, and numbers and words."""
    if not isinstance(value, FunctionType):
        return isinstance(value, BuiltinFunctionType) and isinstance(
            value.__self__, (ModuleType, type)
        )
    try:
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
    except ValueError:  # a cell that is empty still
        return False
    return all(isinstance(held, ATOMS) or is_plain_function(held) for held in cells)


def _again(value: Any) -> Any:
    """Return an argument in containers that the model may change."""
    if isinstance(value, torch.Tensor) or _is_atom(value):
        return value
    return _rebuilt(value, MAX_DEPTH, _again)


def _is_atom(value: Any) -> bool:
    """Whether it is nothing that a call can change."""
    return isinstance(value, ATOMS) or is_plain_function(value)


def _rebuilt(value: Any, depth: int, keep: Any) -> Any:
    """Return a container of the same type with other parts; the one that is given is left alone.

    Raises:
        ReplayRefusedError: If it is none that is known, or too deep.
    """
    kind = type(value)
    if depth and kind in (tuple, list, set, frozenset):
        return kind(keep(part) for part in value)
    if depth and kind in (dict, OrderedDict):
        return kind((name, keep(part)) for name, part in value.items())
    if depth and kind.__bases__ == (tuple,) and hasattr(kind, "_fields"):
        return tuple.__new__(kind, (keep(part) for part in value))
    if depth and is_dataclass(kind) and kind.__bases__ == (object,) and hasattr(value, "__dict__"):
        # Nothing of the class is called: it may count, share or write.
        made = object.__new__(kind)
        made.__dict__.update({name: keep(part) for name, part in value.__dict__.items()})
        return made
    why = f"it was called with an object of the type {type(value).__name__}"
    raise ReplayRefusedError(why)
