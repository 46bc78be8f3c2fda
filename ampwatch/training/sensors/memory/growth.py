"""The memory that a training takes, and graphs that it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampwatch.diagnosis.evidence.memory import Memory, MemoryPlace, MemoryRead
from ampwatch.training.devices import (
    HOST,
    host_memory,
    host_memory_limit,
    memory_limit_of,
    memory_of,
)
from ampwatch.training.hooks.sensor import Sensor
from ampwatch.training.sensors.memory.kept_graphs import KeptGraphs

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from ampwatch.training.hooks.events import (
        BackwardBegan,
        DevicesKnown,
        IterationClosed,
        Scaled,
        TensorsSwapping,
    )
    from ampwatch.training.iteration.context import Context

SPARSE = 64
"""Share, one in so many, of the iterations so far after which memory is read again: a leak shows in a
course that is as long as the training."""

MIN_APART = 4
"""Iterations after which it is read again at the earliest."""

MAX_APART = 32
"""Iterations after which it is due again at the latest: the next one that sensors hear which rest."""


class MemorySensor(Sensor):
    """Reads the memory of the process at the end of some iterations, and follows losses of some.

    Of a training on accelerators the memory of the first of its devices is read, and that of the host.

    Args:
        context: Shared parts of the training.

    Cost:
        80 us in an iteration that is read, and 2 us a node of the way down the graph of its loss, 128 at
        most. One in 4 is read at the beginning of a run, then one in 45 as a rule, which is 2 to 8 us
        an iteration. No sync.
    """

    name = "memory"
    rests = True

    def __init__(self, context: Context) -> None:
        self._home = context.home
        self._clock = context.clock
        self._observe = context.observe
        self._bus = context.bus
        self._graphs = KeptGraphs()
        self._due = 0
        self._marked = -1
        self._step = context.iteration
        self._limits: dict[torch.device | None, int] = {}

    def devices_known(self, _event: DevicesKnown) -> None:
        """Ask at set-up how much memory there is."""
        self._limits.clear()
        self._limit_of(None)
        if (device := self._device()) is not None:
            self._limit_of(device)

    def scaled(self, event: Scaled) -> None:
        """Follow the loss that was scaled: what is handed to backward is a product of it."""
        outputs = event.outputs
        first = outputs[0] if isinstance(outputs, (list, tuple)) and outputs else outputs
        self._mark(first)

    def backward_began(self, event: BackwardBegan) -> None:
        """Follow the loss, if none of this iteration is followed."""
        if event.tensors:
            self._mark(event.tensors[0])

    def _mark(self, loss: object) -> None:
        step = self._step.step
        # One of each iteration that is read, and the next one's: what was read late is no leak.
        if step > self._marked and step >= self._due and self._graphs.mark(step, loss):
            self._marked = step

    def tensors_swapping(self, _event: TensorsSwapping) -> None:
        """Refer to no loss."""
        self._graphs.let_go()

    def iteration_closed(self, event: IterationClosed) -> None:
        """Read memory, if that is due."""
        iteration = event.iteration
        step = iteration.step
        if step < self._due:
            return
        self._due = step + min(max(step // SPARSE, MIN_APART), MAX_APART)
        places = tuple(self._read())
        if places:
            kept = self._graphs.kept(step)
            self._observe(MemoryRead(step, self._clock.unix_ns(), places, kept))

    def removed(self) -> None:
        """Forget the losses."""
        self._graphs.let_go()

    def _read(self) -> Iterator[Memory]:
        device = self._device()
        used = None if device is None else memory_of(device)
        if used is not None:
            yield Memory(
                MemoryPlace.DEVICE,
                used.allocated,
                used.peak,
                used.reserved,
                self._limit_of(device),
                used.allocations,
            )
        used = host_memory()
        if used is not None:
            limit = self._limit_of(None)
            yield Memory(MemoryPlace.HOST, used.allocated, used.peak, limit=limit)

    def _device(self) -> torch.device | None:
        """Return the accelerator that the training is on; ``None`` without one."""
        device = self._home.device
        return None if device is None or device.type == HOST else device

    def _limit_of(self, device: torch.device | None) -> int:
        known = self._limits.get(device)
        if known is None:
            known = host_memory_limit() if device is None else memory_limit_of(device)
            self._limits[device] = known
        return known

    def not_seen(self) -> list[str]:
        """Return, in sentences, what memory is not read."""
        sentences = []
        device = self._device()
        if device is not None and memory_of(device) is None:
            sentences.append(
                f"memory of {device.type} is not read: PyTorch's backend for it does not count it"
            )
        if host_memory() is None:
            sentences.append("memory of the host is not read: this system does not report it")
        return sentences
