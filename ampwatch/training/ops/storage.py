"""A place in memory that a tensor lies in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.multiprocessing.reductions import StorageWeakRef

if TYPE_CHECKING:
    from torch import Tensor


class Memory:
    """A place in memory, as long as the storage there is the same: no tensor, and no reference.

    PyTorch refuses to swap tensors that are weakly referred to.
    """

    __slots__ = ("_shape", "_storage", "address")

    def __init__(self, tensor: Tensor) -> None:
        self.address = tensor.data_ptr()
        self._shape = tensor.shape
        self._storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]

    @property
    def is_alive(self) -> bool:
        """Whether the storage still exists."""
        return not self._storage.expired()  # type: ignore[no-untyped-call]

    def is_of(self, tensor: Tensor) -> bool:
        """Whether a tensor at this address lies in this storage, in the same shape."""
        return self._shape == tensor.shape and self.is_alive
