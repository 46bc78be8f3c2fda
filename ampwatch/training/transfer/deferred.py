"""Transfer of a few numbers from a device to whoever asked for them, without a synchronisation."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from ampwatch.guard import OneAtATime
from ampwatch.training.devices import Link, PinningError
from ampwatch.training.memory import HeldBytes, pinned
from ampwatch.training.transfer.readback import CELL_BYTES, host_scalar, is_plain_scalar

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from ampwatch.training.devices import Event

    Then = Callable[[list[float]], None]

SLOTS = 256
"""Readings that may be on their way at a time."""

WIDTH = 16
"""Numbers of one reading."""


class _LandingSlot:
    """A landing place in pinned memory, with one event per device it was ever used for."""

    __slots__ = ("cells", "events")

    def __init__(self, cells: torch.Tensor) -> None:
        self.cells = cells
        self.events: dict[torch.device, Event] = {}


class _Reading(NamedTuple):
    """Numbers that are on their way."""

    slot: _LandingSlot
    numel: int
    device: torch.device
    then: Then


class Deferred:
    """Reads small tensors: those in host memory at once, those on a device when they arrive.

    A tensor on a device is copied into pinned memory on the current stream, behind an event.
    ``poll`` asks the events and hands over the readings that have arrived, in the order in which
    they were asked for. Nothing here waits: a reading for which there is no room is dropped and
    counted.

    Args:
        link: Way of values to the host; the default reads CPU tensors in place.
        slots: Readings that may be on their way.
        width: Numbers of one reading, at most.

    Attributes:
        dropped: Readings that were given up so far.
        flying: Readings that are on their way.
    """

    def __init__(self, link: Link | None = None, slots: int = SLOTS, width: int = WIDTH) -> None:
        self.dropped = 0
        self._link = link or Link()
        self._num_slots = slots
        self._width = width
        self._free: deque[_LandingSlot] | None = None
        self.flying: deque[_Reading] = deque()
        self._polling = OneAtATime()

    def prepare(self) -> None:
        """Allocate the pinned memory: pinning is slow and may stop the device.

        Does nothing where it is done already. Where it fails, readings are dropped and counted.
        """
        if self._free is not None:
            return
        try:
            block = self._link.landing_place(self._num_slots * self._width)
        except PinningError:
            self._free = deque()
            return
        rows = block.view(self._num_slots, self._width).unbind()
        self._free = deque(_LandingSlot(row) for row in rows)

    def held_bytes(self) -> HeldBytes:
        """Return the bytes of the pinned memory."""
        numel = 0 if self._free is None else self._num_slots * self._width
        return HeldBytes(pinned(CELL_BYTES * numel))

    def read(self, values: torch.Tensor, then: Then) -> None:
        """Take ``values`` as they are now, in stream order, and hand them to ``then``.

        Args:
            values: Plain and strided, up to ``width`` elements in any shape. On a device they are
                rounded to float32.
            then: Called with the elements in order: at once if they are in host memory, else
                from ``poll``. It must not keep tensors of a training alive.

        Raises:
            ValueError: If there are more elements than ``width``.

        Cost:
            CPU: 1 us. Device: one asynchronous copy of a few bytes and one event.
        """
        if is_plain_scalar(values) and self._link.is_host(values.device):
            then([host_scalar(values)])  # no op, which the program's dispatch modes would see
            return
        values = values.detach().reshape(-1)
        if len(values) > self._width:
            msg = f"expected at most {self._width} values, got {len(values)}; read them in parts"
            raise ValueError(msg)
        if self._link.is_host(values.device):
            then([float(value) for value in values.tolist()])
            return
        slot = self._slot(values.device)
        if slot is None:
            self.dropped += 1
            return
        device = values.device
        slot.cells[: len(values)].copy_(values, non_blocking=True)
        event = slot.events.get(device)
        if event is None:
            event = slot.events[device] = self._link.make_event(device)
        # Behind the copy, on the same stream. Recording again moves the mark of an event, which is
        # fine: a slot is free only once its event has passed.
        event.record(self._link.stream(device))
        self.flying.append(_Reading(slot, len(values), device, then))

    def poll(self) -> None:
        """Hand over what has arrived, oldest first. Never waits."""
        # Sensors poll from threads of autograd as well. Whoever finds another one at it leaves:
        # that one hands over everything, also if ``then`` polls again.
        if self.flying:
            self._polling.run(self._hand_over)

    def _hand_over(self) -> None:
        while self.flying and self._has_arrived(self.flying[0]):
            reading = self.flying.popleft()
            # Before the slot is free: another reading may be copied into it at once.
            values = reading.slot.cells[: reading.numel].tolist()
            self._give_back(reading.slot)
            reading.then(values)

    def _slot(self, device: torch.device) -> _LandingSlot | None:
        # Neither copies to the host nor events may be part of a CUDA graph.
        if not self._link.may_ask((device,)):
            return None
        if self._free is None:
            self.prepare()
        try:
            return self._free.popleft() if self._free is not None else None
        except IndexError:
            return None

    def _give_back(self, slot: _LandingSlot) -> None:
        if self._free is not None:
            self._free.append(slot)

    def _has_arrived(self, reading: _Reading) -> bool:
        if not self._link.may_ask((reading.device,)):
            return False
        is_there: Any = reading.slot.events[reading.device].query()
        return bool(is_there)
