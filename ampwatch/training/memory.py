"""Account of the memory that watching holds, by part, and the limit that it stays within.

Nothing is reserved and nothing is booked: each holder says what it holds when it is asked, so that
the account cannot drift from what is there. It is asked at set-up, in sampled iterations and for
reports, never in a quiet step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ampwatch.wire.records import MEMORY_LIMIT, MEMORY_PARTS, MEMORY_PLACES, memory_fact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

MIN_LIMIT = 2**26
"""Bytes that a model of any size is watched with."""

SHARE = 0.01
"""Share of the bytes of a model that it may take to watch it."""

STEP = 2**16
"""Bytes to which facts are rounded up: not each input of another length is to be a record."""


class HeldBytes(NamedTuple):
    """Bytes that a part holds.

    Attributes:
        host: In host memory, pinned or not.
        device: On devices.
    """

    host: int = 0
    device: int = 0


class MemoryBudget:
    """What watching holds, and what it may hold.

    The limit holds for host memory, and again for all devices together. Python objects and code
    are not in the account: benchmarks/memory.py measures them.

    Args:
        limit: The limit, for each of the two. Unit: B.

    Attributes:
        refused: Sentences about what was not held for want of room.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.refused: dict[str, str] = {}
        self._reported: set[str] = set()
        self._holders: list[tuple[str, Callable[[], HeldBytes]]] = []

    def add(self, part: str, held: Callable[[], HeldBytes]) -> None:
        """Have a part counted.

        Args:
            part: One of ``MEMORY_PARTS``; it may have several holders.
            held: Returns what the holder holds now.
        """
        self._holders.append((part, held))

    def held(self) -> dict[str, HeldBytes]:
        """Return what each part holds now."""
        total = dict.fromkeys(MEMORY_PARTS, HeldBytes())
        for part, held in self._holders:
            total[part] = HeldBytes(*map(sum, zip(total[part], held(), strict=True)))
        return total

    def is_kept(self) -> bool:
        """Whether no more is held than may be."""
        return all(sum(held) <= self.limit for held in zip(*self.held().values(), strict=True))

    def left(self) -> HeldBytes:
        """Return what is left of the limit in host memory and on devices, 0 at least of each."""
        host, device = map(sum, zip(*self.held().values(), strict=True))
        return HeldBytes(max(self.limit - host, 0), max(self.limit - device, 0))

    def facts(self) -> dict[str, str]:
        """Return the account as facts of a run: bytes, by part where there are any, and the limit."""
        facts = {MEMORY_LIMIT: str(self.limit)}
        for part, held in self.held().items():
            for place, nbytes in zip(MEMORY_PLACES, held, strict=True):
                name = memory_fact(part, place)
                if nbytes or name in self._reported:
                    self._reported.add(name)
                    facts[name] = str(-(-nbytes // STEP) * STEP)
        return facts

    def refuse(self, part: str, what: str) -> None:
        """Take note of what is not held, or not done, for want of room, in the newest words."""
        self.refused[part] = (
            f"{what}: watching holds at most {self.limit} bytes in host memory and as much on"
            " devices (setting `memory_bytes`)"
        )


def limit_of(tensors: Iterable[Tensor], wanted: int) -> int:
    """Return the limit for a model.

    Args:
        tensors: Its parameters and buffers.
        wanted: The setting; 0 for ``SHARE`` of the model, or ``MIN_LIMIT`` if that is more. Unit: B.
    """
    return wanted or max(MIN_LIMIT, int(SHARE * sum(map(_bytes_of, tensors))))


def pinned(nbytes: int) -> int:
    """Return what PyTorch pins for a number of bytes: the next power of two. Unit: B."""
    return 1 << (nbytes - 1).bit_length() if nbytes else 0


def bytes_held(tensors: Iterable[Tensor]) -> HeldBytes:
    """Return the bytes of tensors that own their memory, by where they are."""
    host = device = 0
    for tensor in tensors:
        if tensor.device.type == "cpu":
            host += tensor.nbytes
        else:
            device += tensor.nbytes
    return HeldBytes(host, device)


def _bytes_of(tensor: Tensor) -> int:
    try:
        return tensor.nbytes
    except (RuntimeError, ValueError, NotImplementedError):  # lazy, or without memory of its own
        return 0
