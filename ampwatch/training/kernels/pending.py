"""Memory that a collective has yet to write: nobody may read it.

A collective that is begun with ``async_op=True`` returns a handle at once. Until the program has
waited, the memory of the result holds whatever was there before, or a part of the result.
"""

from __future__ import annotations

import weakref
from threading import Lock
from typing import TYPE_CHECKING, Any

from ampwatch.training.private import storage_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

MAX_PENDING = 4096
"""Storages that are remembered at a time; handles that are gone are let go of before that."""


class Pending:
    """Storages that collectives of this process are still to write.

    The handle says when a result is there: the program has waited for it, or the collective is over.
    A handle that nobody holds any more can be waited for by nobody, so it does not count. Neither
    handles nor tensors are kept alive.
    """

    def __init__(self) -> None:
        self._works: dict[int, weakref.ref[Any]] = {}
        # Collectives may be begun in the threads of autograd, one for each device.
        self._lock = Lock()

    def __bool__(self) -> bool:
        return bool(self._works)

    def __contains__(self, tensor: Tensor) -> bool:
        """Whether the memory of a tensor is still to be written. Never waits."""
        reference = self._works.get(_key(tensor)) if self._works else None
        if reference is None:
            return False
        work = reference()
        try:
            return work is not None and not work.is_completed()
        except RuntimeError:  # one that has failed has written nothing
            return True

    def begin(self, work: Any, targets: Iterable[Tensor]) -> None:
        """Take note that a collective has begun that writes these tensors."""
        reference = weakref.ref(work)
        with self._lock:
            if len(self._works) >= MAX_PENDING:
                self._works = {k: w for k, w in self._works.items() if w() is not None}
            for tensor in targets:
                key = _key(tensor)
                if key and len(self._works) < MAX_PENDING:
                    self._works[key] = reference

    def end(self, work: Any) -> None:
        """Take note that the program has waited: what it reads from now on is the result."""
        with self._lock:
            over = [key for key, known in self._works.items() if known() in (None, work)]
            for key in over:
                del self._works[key]

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._works.clear()


PENDING = Pending()
"""The collectives of this process, whoever has begun them."""


def _key(tensor: Tensor) -> int:
    """Return the identity of the storage of a tensor; 0 of one that has none to ask for."""
    try:
        key: int = storage_key(tensor.untyped_storage())
    except (
        RuntimeError,
        NotImplementedError,
    ):  # sparse, or of a subclass without memory of its own
        return 0
    return key
