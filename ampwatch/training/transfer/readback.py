"""Transfer of device scalars to the host, without a synchronisation.

Values of one iteration go into one row. Values in host memory are read where they lie. Values on
a device are copied into pinned memory on the current stream, behind an event, and read some
iterations later, once the event has passed. A full readback drops the newest iteration and counts
it; it never waits.
"""

from __future__ import annotations

import ctypes
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from ampwatch.training.devices import HOST, Link, PinningError
from ampwatch.training.kernels.admission import is_ordinary, unwrapped
from ampwatch.training.memory import HeldBytes, pinned
from ampwatch.training.native import core

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ampwatch.training.devices import Event

CELL_BYTES = 4
"""Size of a value in pinned memory, which is float32 or int32."""


def is_plain_scalar(value: object) -> TypeGuard[torch.Tensor]:
    """Whether ``value`` is an ordinary dense tensor with exactly one element.

    Tensor subclasses (DTensor, FakeTensor), and those that a transform of ``torch.func`` hands
    out, hide where their memory is and are refused.
    """
    return is_ordinary(value) and value.layout is torch.strided and value.numel() == 1


def _host_scalar(value: torch.Tensor) -> float:
    """Read a plain one-element CPU tensor straight from memory.

    ``Tensor.item()`` would do, but is an ATen op: it shows up in the user's
    profiles, flop counts and dispatch modes, and in the count of host syncs.

    Args:
        value: One element of float64, float32, float16, bfloat16, int32, int64 or bool, on the CPU.

    Raises:
        TypeError: If the dtype is another one.

    Cost:
        About 0.2 us, in Python 0.4; no copy, no sync.
    """
    try:
        address = value.data_ptr()
    except RuntimeError:
        # GradScaler makes its scale at the first call of scale(): within torch.func.grad that is one of
        # the transform, with its memory hidden, for as long as the scaler lives.
        address = unwrapped(value).data_ptr()
    kind = _TYPES.get(value.dtype)
    if kind is not None:
        return kind.from_address(address).value  # type: ignore[no-any-return]
    read = _READERS.get(value.dtype)
    if read is None:
        msg = f"expected a float or an int scalar, got {value.dtype}"
        raise TypeError(msg)
    return read(address)


host_scalar = _host_scalar


def _bfloat16(address: int) -> float:
    # bfloat16 is the upper half of a float32.
    bits = ctypes.c_uint16.from_address(address).value << 16
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


_TYPES: dict[torch.dtype, Any] = {
    torch.float32: ctypes.c_float,
    torch.float64: ctypes.c_double,
    torch.int32: ctypes.c_int32,
    torch.int64: ctypes.c_int64,
    torch.bool: ctypes.c_bool,
}
"""Dtypes that C has a type for."""

_READERS: dict[torch.dtype, Callable[[int], float]] = {
    torch.float16: lambda address: float(struct.unpack("<e", ctypes.string_at(address, 2))[0]),
    torch.bfloat16: _bfloat16,
}


CODES = {dtype: code for code, dtype in enumerate((*_TYPES, *_READERS))}
"""The order of native/scalars.c."""

if core is not None:
    core.prepare_scalars(CODES, _host_scalar)
    host_scalar = core.host_scalar


class Row:
    """The values of one iteration on their way to the host.

    Attributes:
        values: The values, by column; one that is still on a device reads 0 until it arrives.
        payload: Knowledge of the host when the row was sent off.
        cells: Per column the landing place in pinned memory; empty before the first
            value from a device.
        landing: Column and cell of each value that comes from a device in this iteration.
        events: One event per device that was ever used, made once.
        marked: Devices whose event stands for this iteration.
        is_lost: Whether a value of it cannot reach the host.
    """

    __slots__ = ("cells", "events", "is_lost", "landing", "marked", "payload", "values")

    def __init__(self, width: int) -> None:
        self.values = [0.0] * width
        self.payload: Any = None
        self.cells: tuple[torch.Tensor, ...] = ()
        self.landing: list[tuple[int, torch.Tensor]] = []
        self.events: dict[torch.device, Event] = {}
        self.marked: list[torch.device] = []
        self.is_lost = False


class Readback:
    """A ring of rows between the device and the host.

    Args:
        slots: Iterations that may be on their way at a time.
        width: Values per iteration.
        link: Way of values to the host; the default reads CPU tensors in place and copies
            from the accelerator.

    Attributes:
        dropped: Iterations whose values were given up, because the device was
            more than ``slots`` iterations behind, or no memory could be pinned.
        why_not: Why no value of a device reaches the host; empty if they do.
    """

    def __init__(self, slots: int, width: int, link: Link | None = None) -> None:
        self.dropped = 0
        self.why_not = ""
        self._rows = tuple(Row(width) for _ in range(slots))
        self._free = deque(self._rows)
        self._flying: deque[Row] = deque()
        self._link = link or Link()
        self._width = width

    @property
    def in_flight(self) -> int:
        """Number of rows that are on their way."""
        return len(self._flying)

    def held_bytes(self) -> HeldBytes:
        """Return the bytes of the pinned memory."""
        numel = self._width * len(self._rows) if self._rows[0].cells else 0
        return HeldBytes(pinned(CELL_BYTES * numel))

    def open(self) -> Row | None:
        """Return a row to fill, or ``None`` (counted) if all are on their way.

        One is filled at a time: what was opened before and not sealed is forgotten.
        """
        if not self._free:
            self._reclaim()
        if not self._free:
            self.dropped += 1
            return None
        return self._free.popleft()

    def _reclaim(self) -> None:
        """Take back rows that are neither free nor on their way: of calls that were interrupted."""
        flying = {id(row) for row in self._flying}
        for row in self._rows:
            if id(row) not in flying:
                self._release(row)

    def put(self, row: Row, column: int, *values: torch.Tensor) -> None:
        """Take values as they are *now*, in stream order, into columns one after another.

        Args:
            row: From ``open``.
            column: Column of the first of them.
            values: One element each, plain; see ``is_plain_scalar``. float32 or int32 if on a
                device.

        Cost:
            CPU tensor: one read. Device tensor: one asynchronous copy of 4 bytes into
            pinned memory, on the current stream of its device.
        """
        # In line what ``Link.is_host`` says: this runs for each value of each step.
        reads_in_place = self._link.reads_in_place
        for number, value in enumerate(values, column):
            if reads_in_place and value.device.type == HOST:
                row.values[number] = host_scalar(value)
            else:
                self._send(row, number, value)

    def _send(self, row: Row, column: int, value: torch.Tensor) -> None:
        if not row.cells:
            self.prepare()
        if self.why_not:
            row.is_lost = True
            return
        cell = row.cells[column]
        if value.dtype is torch.int32:
            cell = cell.view(torch.int32)  # converting would take a kernel of its own
        # Into pinned memory: a copy into pageable memory would wait, whatever ``non_blocking`` says.
        cell.copy_(value.detach().reshape(()), non_blocking=True)
        row.landing.append((column, cell))
        if value.device not in row.marked:
            row.marked.append(value.device)

    def prepare(self) -> None:
        """Allocate the pinned memory, in one block: pinning is slow and may stop the device.

        Does nothing where it is done already. Where it fails, iterations with values from a device
        are dropped and counted, and ``why_not`` says why.
        """
        if self._rows[0].cells or self.why_not:
            return
        try:
            block = self._link.landing_place(len(self._rows) * self._width)
        except PinningError as error:
            self.why_not = str(error)
            return
        cells = block.unbind()
        for number, row in enumerate(self._rows):
            row.cells = cells[number * self._width : (number + 1) * self._width]

    def give_up(self, row: Row) -> None:
        """Drop a row whose iteration it cannot hold, and count it."""
        self.dropped += 1
        self._release(row)

    def seal(self, row: Row, payload: object) -> bool:
        """Send the row off with the host's knowledge; rows arrive in order.

        Returns:
            Whether less than half of the rows are on their way; also not if the row is lost.

        Cost: one event per device that values came from.
        """
        if row.is_lost:
            self.give_up(row)
            return False
        row.payload = payload
        for device in row.marked:
            if device not in row.events:
                row.events[device] = self._link.make_event(device)
            # On the stream of the copies: behind another one it would pass too early.
            row.events[device].record(self._link.stream(device))
        self._flying.append(row)
        return 2 * len(self._flying) < len(self._rows)

    def arrived(
        self, ready: Callable[[Any], bool] = lambda _payload: True
    ) -> Iterator[tuple[list[float], Any]]:
        """Yield values and payload of the rows that have arrived, oldest first. Never waits.

        The list of values is used again once the caller asks for the next row.

        Args:
            ready: Returns whether everything else that belongs to a payload has arrived.
        """
        while self._flying:
            row = self._flying[0]
            if not ready(row.payload):
                return
            if not self._link.may_ask(row.marked):
                return
            if not all(row.events[device].query() for device in row.marked):
                return
            self._flying.popleft()
            for column, cell in row.landing:
                row.values[column] = host_scalar(cell)
            # Free only when the caller comes back: until then it reads from the row.
            yield row.values, row.payload
            self._release(row)

    def _release(self, row: Row) -> None:
        row.payload = None
        row.is_lost = False
        row.landing.clear()
        row.marked.clear()
        self._free.append(row)
