"""Memory that a collective has yet to write: nobody may read it.

A collective that is begun with ``async_op=True`` returns a handle at once. Until the program has
waited, the memory of the result holds whatever was there before, or a part of the result.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from ampwatch.training.private import storage_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

MAX_PENDING = 4096
"""Storages that are remembered at a time."""


class Pending:
    """Storages that collectives of this process are still to write.

    The handle says when a result is there: the program has waited for it, or the collective is over.
    It is kept until then: a program may let go of it and keep the future that it was asked for, as
    hooks of ``DistributedDataParallel`` do. A backend holds what it writes to until it has, so
    nothing lives longer for that than until the next collective, or ``let_go``.
    """

    def __init__(self) -> None:
        self._works: dict[int, Any] = {}
        # Collectives may be begun in the threads of autograd, one for each device.
        self._lock = Lock()

    def __bool__(self) -> bool:
        return bool(self._works)

    def __contains__(self, tensor: Tensor) -> bool:
        """Whether the memory of a tensor is still to be written. Never waits."""
        work = self._works.get(_key(tensor)) if self._works else None
        try:
            return work is not None and not work.is_completed()
        except RuntimeError:  # one that has failed has written nothing
            return True

    def begin(self, work: Any, targets: Iterable[Tensor]) -> None:
        """Take note that a collective has begun that writes these tensors."""
        with self._lock:
            for tensor in targets:
                key = _key(tensor)
                # Of a storage that is written again: behind the others, as the newest.
                self._works.pop(key, None)
                if key and len(self._works) < MAX_PENDING:
                    self._works[key] = work

    def let_go_of_oldest(self) -> None:
        """Let go of handles whose collectives are over, up to the first that is not. Never waits.

        Collectives end in the order in which they begin, but for messages between two ranks.

        Cost: 1 us, and as much for each handle. Not to be called while a CUDA graph is captured.
        """
        with self._lock:
            while self._works:
                key, work = next(iter(self._works.items()))
                if not _is_over(work):
                    break
                del self._works[key]

    def let_go(self) -> None:
        """Let go of all handles whose collectives are over. Never waits.

        Cost: as above.
        """
        with self._lock:
            self._works = {k: work for k, work in self._works.items() if not _is_over(work)}

    def end(self, work: Any) -> None:
        """Take note that the program has waited: what it reads from now on is the result."""
        with self._lock:
            over = [key for key, known in self._works.items() if known is work]
            for key in over:
                del self._works[key]

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._works.clear()


PENDING = Pending()
"""The collectives of this process, whoever has begun them."""


def _is_over(work: Any) -> bool:
    try:
        return bool(work.is_completed())
    except RuntimeError:  # one that has failed writes nothing any more
        return True


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
