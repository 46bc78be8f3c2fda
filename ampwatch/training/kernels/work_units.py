"""The work of one launch, cut into units, in a table on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ampwatch.numerics.blocks import PART, stretch_of
from ampwatch.training.devices import HOST, current_stream, processors
from ampwatch.training.kernels.dtypes import name_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from torch import Tensor

    Fingerprint = tuple[tuple[int, int, torch.dtype], ...]

ALIGNMENT = 16
"""Bytes that one thread reads at once; a unit begins at a multiple of them."""

MAX_KEPT_BYTES = 2**24
"""Memory that remembered lists may take, on the device and on the host together. A turn of
activations has a list for each module, and those of the next turn mostly have the same addresses:
on 132 multiprocessors there is room for 480 lists of one large tensor. Unit: bytes."""

_LIST_BYTES = 512
"""What a list takes besides its units and pieces: PyTorch's allocator gives no less."""

_PIECE_BYTES = 200
"""What a piece takes on the host, as part of a fingerprint: a tuple and two integers."""


class LaunchTable(NamedTuple):
    """Pieces that one launch measures.

    Attributes:
        dtype: Of all of them, without ``torch.``.
        units: int64 on the device, a unit in each row: an address that is a multiple of
            ``ALIGNMENT``, the first element from there that counts, the one after the last, and
            the number of the piece.
    """

    dtype: str
    units: Tensor


class WorkUnits:
    """Cuts lists of pieces into units of about the same length, and remembers lists.

    The tables are uploaded through pinned memory, which PyTorch's allocator does not give to
    others before the copy is done. A table is made, used and given back on one stream, so the
    device is done with it by the time it is overwritten.

    Args:
        step: Elements that a unit is a multiple of, unless a piece ends there.
        per_processor: Units for each multiprocessor, if there is one piece only.
    """

    def __init__(self, step: int, per_processor: int) -> None:
        self._step = step
        self._per_processor = per_processor
        self._known: dict[tuple[Hashable, Fingerprint], list[LaunchTable]] = {}
        self._kept_bytes = 0

    def of(self, pieces: Sequence[Tensor], device: torch.device) -> list[LaunchTable]:
        """Return the launches that measure ``pieces``, one for each dtype.

        Cost:
            0.2 us a piece on the host; 1 us a unit and an upload when an address has changed.
        """
        # Gradients of an iteration mostly lie where those of the last one did: the caching allocator
        # gives equal requests in equal order equal addresses.
        fingerprint = tuple([(p.data_ptr(), p.numel(), p.dtype) for p in pieces])
        # Per stream: another stream might still read a table that is given back on this one.
        stream = None if device.type == HOST else current_stream(device)
        launches = self._known.pop((stream, fingerprint), None)
        if launches is None:
            launches = self._cut(fingerprint, device)
            self._make_room(_bytes_of(fingerprint, launches))
        self._known[stream, fingerprint] = launches  # the newest is the last
        return launches

    def _make_room(self, wanted: int) -> None:
        """Forget the lists that were asked for longest ago, until there is room for another."""
        self._kept_bytes += wanted
        while self._kept_bytes > MAX_KEPT_BYTES and self._known:
            oldest = next(iter(self._known))
            self._kept_bytes -= _bytes_of(oldest[1], self._known.pop(oldest))

    def _cut(self, fingerprint: Fingerprint, device: torch.device) -> list[LaunchTable]:
        groups: dict[torch.dtype, list[tuple[int, int, int]]] = {}
        for row, (address, numel, dtype) in enumerate(fingerprint):
            if numel:
                groups.setdefault(dtype, []).append((address, numel, row))
        return [
            LaunchTable(
                name_of(dtype),
                _upload(self._rows(pieces, dtype.itemsize, device), device),
            )
            for dtype, pieces in groups.items()
        ]

    def _rows(
        self, pieces: list[tuple[int, int, int]], itemsize: int, device: torch.device
    ) -> list[tuple[int, ...]]:
        total = sum(numel for _, numel, _ in pieces)
        wanted = self._per_processor * processors(device)
        length = -(-total // (wanted * self._step)) * self._step
        rows: list[tuple[int, ...]] = []
        for first, numel, row in pieces:
            # A piece off the beat is read from the multiple before it on. Its first step is a unit of
            # its own, in which the kernel leaves out what is not of the piece; the others are aligned.
            # The alternative, a variant of the kernel for these pieces, was compiled when the first of
            # them came: for seconds, in the middle of a step.
            begin = first % ALIGNMENT // itemsize
            address = first - begin * itemsize
            end = begin + numel
            if begin:
                rows.append((address, begin, min(self._step, end), row))
            rows += [
                (address + here * itemsize, 0, min(length, end - here), row)
                for here in range(self._step if begin else 0, end, length)
            ]
        return rows


class StretchUnits(WorkUnits):
    """Cuts pieces into units of whole stretches, counted from where the piece begins.

    A unit has an address, that of the piece, the first stretch, the one after the last, the number of
    the piece, its elements, and those of a stretch. Addresses are multiples of no more than an element.

    Args:
        per_processor: Units for each multiprocessor, if there is one piece only.
    """

    def __init__(self, per_processor: int) -> None:
        super().__init__(PART, per_processor)

    def _rows(
        self,
        pieces: list[tuple[int, int, int]],
        itemsize: int,  # noqa: ARG002 - of the class above
        device: torch.device,
    ) -> list[tuple[int, ...]]:
        stretches = [stretch_of(numel) for _, numel, _ in pieces]
        ends = [-(-piece[1] // stretch) for piece, stretch in zip(pieces, stretches, strict=True)]
        length = -(-sum(ends) // (self._per_processor * processors(device)))
        rows: list[tuple[int, ...]] = []
        for (address, numel, row), stretch, end in zip(pieces, stretches, ends, strict=True):
            rows += [
                (address, first, min(first + length, end), row, numel, stretch)
                for first in range(0, end, length)
            ]
        return rows


def _bytes_of(fingerprint: Fingerprint, launches: list[LaunchTable]) -> int:
    tables = sum(launch.units.nbytes for launch in launches)
    return _LIST_BYTES + _PIECE_BYTES * len(fingerprint) + tables


def _upload(rows: list[tuple[int, ...]], device: torch.device) -> Tensor:
    pinned = torch.tensor(rows, dtype=torch.int64, device=HOST, pin_memory=device.type != HOST)
    return pinned.to(device, non_blocking=True)
