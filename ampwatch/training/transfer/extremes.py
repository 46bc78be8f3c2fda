"""Smallest and largest elements of many tensors, sent to the host without a synchronisation."""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.training.devices import Link, PinningError
from ampwatch.training.kernels.admission import is_gapless, stored
from ampwatch.training.memory import HeldBytes, pinned
from ampwatch.training.transfer.readback import host_scalar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from torch import Tensor

    from ampwatch.training.devices import Event

ROWS = 512
"""Rows that are allocated at a time."""

COLUMNS = 3

MAX_ROWS = 65536
"""Tensors that are measured between two sendings. A row of one takes up to 24 bytes."""

PREPARED = 64
"""Landing places that are pinned at set-up, 12 kB each; more are if an iteration needs them."""

MAX_STREAMS = 16
"""Streams whose tensors are measured. Each has rows of its own, which are written and copied in
the order of that stream."""

MAX_AT_ONCE = 2**31 - 1
"""Elements up to which the two ends are found in one pass. Beyond that PyTorch's kernels index in
parts, which of two results at a time it does nowhere else."""

BYTES = 8
"""Size of the largest number in a row; narrower dtypes leave a part of the landing place unused."""


PLACE = ROWS * COLUMNS * BYTES // torch.float32.itemsize
"""Elements of a landing place."""


class Extremes:
    """The smallest and largest element of one tensor: NaN before they arrive, or if any is NaN.

    Attributes:
        low: Smallest element.
        high: Largest element.
        least: Smallest magnitude; NaN unless it was asked for.
        has_least: Whether the smallest magnitude was asked for.
    """

    __slots__ = ("has_least", "high", "least", "low")

    def __init__(self, *, has_least: bool) -> None:
        self.low = self.high = self.least = math.nan
        self.has_least = has_least

    @property
    def is_finite(self) -> bool:
        """Whether all elements are finite."""
        return math.isfinite(self.low) and math.isfinite(self.high)


class _Chunk:
    """A block of rows on a device, in one dtype."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = torch.empty((ROWS, COLUMNS), dtype=dtype, device=device)
        # Views made once: making them for each op would cost more than the op.
        self.cells = [row.unbind() for row in self.rows.unbind()]
        self.used: list[Extremes] = []


class _Lane:
    """The rows of one stream."""

    def __init__(self, device: torch.device, stream: Any) -> None:
        self.device = device
        self.stream = stream
        self.chunks: dict[torch.dtype, list[_Chunk]] = {}

    def free(self, dtype: torch.dtype) -> _Chunk:
        """Return a chunk in which a row is free."""
        chunks = self.chunks.setdefault(dtype, [])
        for chunk in chunks[-1:]:
            if len(chunk.used) < ROWS:
                return chunk
        chunks.sort(key=lambda chunk: not chunk.used)  # chunks that are free come last
        if not chunks or chunks[-1].used:
            chunks.append(_Chunk(dtype, self.device))
        return chunks[-1]

    def filled(self) -> Iterator[_Chunk]:
        """Yield the chunks that were written to."""
        for chunks in self.chunks.values():
            yield from (chunk for chunk in chunks if chunk.used)


class _Cargo(NamedTuple):
    """A copy of rows that is on its way to the host."""

    place: Tensor
    dtype: torch.dtype
    rows: Sequence[Extremes]


class Flight:
    """The rows of one sending, on their way.

    Args:
        cargo: The copies.
        events: Events behind the copies, one for each stream.
        owner: Sender of the copies, who takes the landing places back.
        is_finite: Whether all values are finite that were read on the host at once.
    """

    def __init__(
        self,
        cargo: Sequence[_Cargo],
        events: Sequence[tuple[torch.device, Event]],
        owner: Measures,
        *,
        is_finite: bool,
    ) -> None:
        self._cargo = cargo
        self._events = events
        self._owner = owner
        self._is_finite = is_finite

    def has_arrived(self) -> bool:
        """Whether the rows are in host memory. Never waits."""
        devices = [device for device, _ in self._events]
        return self._owner.link.may_ask(devices) and all(e.query() for _, e in self._events)

    def land(self) -> bool:
        """Fill in the rows that have arrived; return whether all of them are finite."""
        is_finite = self._is_finite
        for place, dtype, rows in self._cargo:
            values: list[list[float]] = _cells(place, dtype, len(rows)).tolist()
            for row, (low, high, least) in zip(rows, values, strict=True):
                row.low = low
                row.high = high
                if row.has_least:
                    row.least = least
                # x - x is zero for finite x alone.
                is_finite = is_finite and low - low == 0.0 and high - high == 0.0
            self._owner.take_back(place)
        self._owner.take_back_events(self._events)
        return is_finite


class Measures:
    """Has devices find the smallest and largest element of tensors, and sends these to the host.

    No tensor is kept. Tensors in host memory are read at once.

    Args:
        link: Way of values to the host.
        most: Rows between two sendings.

    Attributes:
        link: Way of values to the host.
    """

    def __init__(self, link: Link | None = None, most: int = MAX_ROWS) -> None:
        self.link = link or Link()
        self._is_finite = True
        self._is_prepared = False
        self._most = most
        self._count = 0
        self._lanes: dict[Hashable, _Lane] = {}
        self._places: deque[Tensor] = deque()
        self._num_prepared = self._num_more = 0
        self._events: dict[torch.device, deque[Event]] = {}

    def prepare(self) -> None:
        """Pin landing places, in one block: pinning is slow and may stop the device.

        Does nothing where it is done already, or has failed before.
        """
        if not self._is_prepared:
            self._is_prepared = True
            with suppress(PinningError):  # ``send`` raises it, if there is ever something to send
                block = self.link.landing_place(PREPARED * PLACE)
                self._places.extend(block.view(PREPARED, PLACE).unbind())
                self._num_prepared = PREPARED

    def held_bytes(self) -> HeldBytes:
        """Return the bytes of the landing places, and of the rows on devices."""
        chunks = [c for lane in self._lanes.values() for held in lane.chunks.values() for c in held]
        size = PLACE * torch.float32.itemsize
        places = pinned(size * self._num_prepared) + self._num_more * pinned(size)
        return HeldBytes(places, sum(chunk.rows.nbytes for chunk in chunks))

    def measure(self, tensor: Tensor, *, least: bool = False) -> Extremes | None:
        """Measure a tensor as it is now, in stream order.

        Args:
            tensor: Dense, not empty, of a floating-point dtype; nothing is recorded for autograd.
            least: Whether the smallest magnitude is measured as well.

        Returns:
            The row, which is filled in once the flight has landed; ``None`` if there is no room,
            or if a CUDA graph is being captured.

        Cost:
            One pass over the tensor, two with ``least``; on a device one small kernel each.
        """
        device = tensor.device
        if self._count >= self._most or not self.link.may_ask((device,)):
            return None
        self._count += 1
        tensor = stored(tensor)
        row = Extremes(has_least=least)
        if self.link.is_host(device):
            self._read(tensor, row)
            return row
        # Rows are per stream: kernels of two streams on one chunk, and its copy, would race.
        stream = self.link.stream(device)
        lane = self._lanes.get((device, stream))
        if lane is None:
            if len(self._lanes) >= MAX_STREAMS:
                return None
            lane = self._lanes[device, stream] = _Lane(device, stream)
        chunk = lane.free(tensor.dtype)
        low, high, smallest = chunk.cells[len(chunk.used)]
        _find_ends(tensor, low, high)
        if least:
            torch.linalg.vector_norm(tensor, -math.inf, out=smallest)
        chunk.used.append(row)
        return row

    def _read(self, tensor: Tensor, row: Extremes) -> None:
        low, high = torch.empty((2,), dtype=tensor.dtype, device=tensor.device).unbind()
        _find_ends(tensor, low, high)
        row.low = host_scalar(low)
        row.high = host_scalar(high)
        if row.has_least:
            row.least = host_scalar(torch.linalg.vector_norm(tensor, -math.inf))
        self._is_finite = self._is_finite and row.is_finite

    def send(self) -> Flight:
        """Copy the used rows to the host, each on the stream that wrote them.

        Raises:
            PinningError: If there is no place for them; ``clear`` forgets them.
        """
        cargo: list[_Cargo] = []
        events: list[tuple[torch.device, Event]] = []
        for lane in self._lanes.values():
            filled = list(lane.filled())
            if not filled:
                continue
            with self.link.using(lane.device, lane.stream):
                for chunk in filled:
                    place = self._place()
                    landing = _cells(place, chunk.rows.dtype, len(chunk.used))
                    landing.copy_(chunk.rows[: len(chunk.used)], non_blocking=True)
                    cargo.append(_Cargo(place, chunk.rows.dtype, chunk.used))
                    # Not cleared in place: the cargo holds the list. Rows may be written again at
                    # once, as whatever writes them comes after the copy in stream order.
                    chunk.used = []
            event = self._event(lane.device)
            event.record(lane.stream)
            events.append((lane.device, event))
        was_finite = self._is_finite
        self._count = 0
        self._is_finite = True
        return Flight(cargo, events, self, is_finite=was_finite)

    def clear(self) -> None:
        """Forget the measurements since the last sending."""
        for lane in self._lanes.values():
            for chunk in lane.filled():
                chunk.used = []
        self._count = 0
        self._is_finite = True

    def take_back(self, place: Tensor) -> None:
        """Use a landing place again whose values have been read."""
        self._places.append(place)

    def take_back_events(self, events: Sequence[tuple[torch.device, Event]]) -> None:
        """Use events again that have passed."""
        for device, event in events:
            self._events.setdefault(device, deque()).append(event)

    def _place(self) -> Tensor:
        if self._places:
            return self._places.popleft()
        place = self.link.landing_place(PLACE)
        self._num_more += 1
        return place

    def _event(self, device: torch.device) -> Event:
        held = self._events.get(device)
        return held.popleft() if held else self.link.make_event(device)


def _find_ends(tensor: Tensor, low: Tensor, high: Tensor) -> None:
    """Write the smallest and the largest element of a tensor into two cells."""
    # ``out`` with a view writes into the row: no allocation and no copy of two numbers.
    if is_gapless(tensor) and tensor.numel() <= MAX_AT_ONCE:
        torch.aminmax(tensor, out=(low, high))
    else:
        # Of a view with gaps aminmax makes a copy as large as that; these two do not.
        torch.amin(tensor, (), out=low)
        torch.amax(tensor, (), out=high)


def _cells(place: Tensor, dtype: torch.dtype, count: int) -> Tensor:
    return place.view(dtype)[: count * COLUMNS].view(count, COLUMNS)
