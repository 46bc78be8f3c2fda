"""Calls of the watched models, kept until it is known whether their step has failed."""

from __future__ import annotations

import ctypes
import weakref
from collections import OrderedDict
from dataclasses import is_dataclass
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.training.devices import HOST, autocast_types
from ampwatch.training.kernels.admission import is_wrapped, unwrapped
from ampwatch.training.memory import HeldBytes
from ampwatch.training.private import storage_key, users_of, version_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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

MAX_UNCHANGED = 64
"""Calls in a row between which no random number was drawn, after which the state is read seldom."""

READ_EVERY = 32
"""Calls from one reading of the state of random numbers to the next then."""

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
        is_certain: Whether it was read, and not taken over from an earlier reading.
    """

    host: Tensor
    devices: tuple[tuple[torch.device, Tensor], ...] = ()
    is_certain: bool = True

    @classmethod
    def now(cls, devices: Sequence[torch.device]) -> Draws:
        """Return the state of now. No sync: the state of a device's generator is on the host."""
        there = [device for device in devices if device.type != HOST]
        states = [
            (device, torch.get_device_module(device).get_rng_state(device)) for device in there
        ]
        return cls(torch.get_rng_state(), tuple(states))

    def equals(self, other: Draws) -> bool:
        """Whether another state is the same."""
        mine, theirs = dict(self.devices), dict(other.devices)
        return (
            mine.keys() == theirs.keys()
            and _bytes_of(self.host) == _bytes_of(other.host)
            and all(_bytes_of(state) == _bytes_of(theirs[key]) for key, state in mine.items())
        )

    def restore(self) -> None:
        """Have the next random numbers be those that came after this state."""
        torch.set_rng_state(self.host)
        for device, state in self.devices:
            torch.get_device_module(device).set_rng_state(state, device)


class RandomNumbers:
    """Tells in which state of random numbers a call is made, and reads it seldom where none are drawn.

    The state of a host's generator is 5 kB that are copied. A state that was not read is that of the
    last reading, as far as is known: whoever needs it compares it with the newest one (``is_certain``).
    A program that sets another state for a call and puts the old one back, as ``torch.random.fork_rng``
    does, and draws nothing else, is replayed with other numbers.
    """

    def __init__(self) -> None:
        self._newest: Draws | None = None
        self._taken_over: Draws | None = None
        self._devices: Sequence[torch.device] = ()
        self._unchanged = self._calls = 0

    def at_call(self, devices: Sequence[torch.device]) -> Draws:
        """Return the state of now, of the generators of the host and of ``devices``.

        Cost: 2 us in a loop, 60 between the kernels of a training where it is read.
        """
        self._calls += 1
        is_quiet = self._unchanged >= MAX_UNCHANGED and devices == self._devices
        if self._taken_over is not None and is_quiet and self._calls % READ_EVERY:
            return self._taken_over
        self._devices = devices
        return self._read(devices)

    def _read(self, devices: Sequence[torch.device]) -> Draws:
        draws = Draws.now(devices)
        is_same = self._newest is not None and draws.equals(self._newest)
        self._unchanged = self._unchanged + 1 if is_same else 0
        self._newest, self._taken_over = draws, draws._replace(is_certain=False)
        return draws

    def knows(self, draws: Draws) -> bool:
        """Whether a state that was returned is that of its call: no number was drawn since, if not read."""
        devices = [device for device, _ in draws.devices]
        return draws.is_certain or self._read(devices).equals(draws)


class KeptCall:
    """One call of a model: references to what it was given, and the state it was made in.

    No value is copied. Of a tensor with a graph a detached view is kept, so that the graph does not
    stay alive. The version counter of each tells whether somebody has written to it since.

    Attributes:
        autocast: Where autocast was on.
        draws: The state of random numbers.
        nbytes: Bytes of its tensors, of several in the same memory those of each: ``own_bytes`` looks closer. Unit: B.
        tensors: Its tensors, with their version counters as they were.
        is_fed: Whether a tensor among its arguments was computed with gradients, and is no data.
        returns_loss: Whether it has returned a scalar that backward can begin with.
        outside: The module, where it is no part of a watched model and nobody else may hold it; else ``None``.

    Raises:
        ReplayRefusedError: If an argument is of a type that cannot be kept.

    Cost: 4 us in a loop, several times as much between the kernels of a training; 1 us a tensor more.
    """

    __slots__ = (
        "__weakref__",
        "_args",
        "_is_apart",
        "_kwargs",
        "_model",
        "autocast",
        "draws",
        "is_fed",
        "nbytes",
        "outside",
        "returns_loss",
        "tensors",
    )

    def __init__(
        self,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        draws: Draws,
    ) -> None:
        # Weak: the newest call of a model that somebody has replaced must not keep it.
        self._model = weakref.ref(model)
        self._is_apart = self.is_fed = self.returns_loss = False
        self.outside: nn.Module | None = None
        self.draws = draws
        self.autocast: tuple[Autocast, ...] = ()
        for device_type in autocast_types():
            if torch.is_autocast_enabled(device_type):
                autocast = Autocast(device_type, torch.get_autocast_dtype(device_type))
                self.autocast = (*self.autocast, autocast)
        self.tensors: list[tuple[Tensor, int]] = []
        self._args = [self._kept(arg) for arg in args]
        self._kwargs = {name: self._kept(arg) for name, arg in kwargs.items()}
        self.nbytes = sum([t.nbytes for t, _ in self.tensors])

    @property
    def is_orphan(self) -> bool:
        """Whether its model is no more."""
        return self._model() is None

    @property
    def model(self) -> nn.Module:
        """The model.

        Raises:
            ReplayRefusedError: If it is no more.
        """
        model = self._model()
        if model is None:
            why = "its model is gone"
            raise ReplayRefusedError(why, is_lasting=False)
        return model

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments as they were, in containers of their own.

        Raises:
            ReplayRefusedError: If somebody has written to one of them since.
        """
        if any(version_of(tensor) != version for tensor, version in self.tensors):
            why = "its inputs were changed in place"
            raise ReplayRefusedError(why, is_lasting=False)
        return [_again(a) for a in self._args], {
            name: _again(a) for name, a in self._kwargs.items()
        }

    def set_apart(self) -> None:
        """Refer to the memory of the tensors alone, and to none of the caller's objects.

        Who else holds the memory can be counted then. Parameters stay what they are: their model
        holds them.
        """
        if not self._is_apart:
            self._is_apart = True
            views = {id(tensor): _view_of(tensor) for tensor, _ in self.tensors}
            self.tensors = [(views[id(tensor)], version) for tensor, version in self.tensors]
            self._args = [_again(arg, views) for arg in self._args]
            self._kwargs = {name: _again(arg, views) for name, arg in self._kwargs.items()}

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
        kept = tensor if tensor.is_leaf else tensor.detach()
        self.is_fed = self.is_fed or not tensor.is_leaf
        self.tensors.append((kept, version_of(kept)))
        return kept


def _bytes_of(state: Tensor) -> bytes:
    # Read where it lies: an op would show up in the user's profiles and dispatch modes. A transform of
    # torch.func hands out what is made within it in a wrapper without memory.
    state = unwrapped(state)
    return ctypes.string_at(state.data_ptr(), state.nbytes)


def own_bytes(calls: Iterable[KeptCall]) -> HeldBytes:
    """Return the bytes that calls alone keep from being freed: whole storages nobody else holds.

    Cost: 5 us for each tensor.
    """
    ours: dict[int, tuple[Any, torch.device, set[int]]] = {}
    for call in calls:
        call.set_apart()
        for tensor, _ in call.tensors:
            storage = tensor.untyped_storage()
            entry = ours.setdefault(storage_key(storage), (storage, tensor.device, set()))
            entry[2].add(id(tensor))
    host = device = 0
    for storage, where, tensors in ours.values():
        if users_of(storage) <= len(tensors):
            host += storage.nbytes() if where.type == HOST else 0
            device += storage.nbytes() if where.type != HOST else 0
    return HeldBytes(host, device)


def _view_of(tensor: Tensor) -> Tensor:
    """Return another tensor of the same memory, that the caller does not hold."""
    if type(tensor) is not torch.Tensor:
        return tensor
    return tensor.detach().requires_grad_(tensor.requires_grad)


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


def _again(value: Any, instead: Mapping[int, Tensor] = MappingProxyType({})) -> Any:
    """Return an argument in containers that the model may change, with other tensors instead of some."""
    if isinstance(value, torch.Tensor):
        return instead.get(id(value), value)
    if _is_atom(value):
        return value
    return _rebuilt(value, MAX_DEPTH, lambda part: _again(part, instead))


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
