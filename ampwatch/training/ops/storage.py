"""A place in memory that a tensor lies in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ampwatch.training.native import core
from ampwatch.training.private import WEAK_REF, free_weak_ref, is_expired

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor


class PythonFinalizer:
    """Calls a function with an argument when it is let go of.

    A part of the extension module (`native/finalizer.c`), and here a second time for where that is not
    built: what the program's handler of a signal raises while this runs is lost.
    """

    __slots__ = ("_argument", "_function")

    def __init__(self, function: Callable[[Any], object], argument: Any) -> None:
        self._function = function
        self._argument = argument

    def __del__(self) -> None:
        """Call it."""
        self._function(self._argument)


Finalizer: Any = PythonFinalizer if core is None else core.Finalizer


class WeakStorage:
    """A weak reference to a storage: it keeps its identity, not its memory, from being given to another one.

    As ``torch.multiprocessing.reductions.StorageWeakRef``, whose ``__del__`` is written in Python: a Ctrl-C
    that comes there is lost.
    """

    __slots__ = ("_end", "_storage")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage: int = getattr(storage, WEAK_REF)()
        self._end = Finalizer(free_weak_ref, self._storage)

    def expired(self) -> bool:
        """Whether nobody holds the storage any more."""
        return bool(is_expired(self._storage))


class Memory:
    """A place in memory, as long as the storage there is the same: no tensor, and no reference.

    PyTorch refuses to swap tensors that are weakly referred to.
    """

    __slots__ = ("_shape", "_storage", "address")

    def __init__(self, tensor: Tensor) -> None:
        self.address = tensor.data_ptr()
        self._shape = tensor.shape
        self._storage = WeakStorage(tensor.untyped_storage())

    @property
    def is_alive(self) -> bool:
        """Whether the storage still exists."""
        return not self._storage.expired()

    def is_of(self, tensor: Tensor) -> bool:
        """Whether a tensor at this address lies in this storage, in the same shape."""
        return self._shape == tensor.shape and self.is_alive
