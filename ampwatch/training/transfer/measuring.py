"""Exponent histograms of lists of tensors, on their way to the host.

Tensors in host memory are measured and read on the spot. Tensors on a device are measured
there, on the current stream, into rows of a slab; when the iteration closes, the slab's used
rows are copied into pinned memory behind an event and read some iterations later. There are
``SLABS`` slabs per device: when all are on their way, a measurement is dropped and counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic_ns
from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

import torch

from ampwatch.guard import Log, is_of_a_signal
from ampwatch.training.devices import Link, is_capturing
from ampwatch.training.kernels.admission import admit
from ampwatch.training.kernels.choice import kernel_for
from ampwatch.training.kernels.dtypes import name_of
from ampwatch.training.kernels.rows import BLOCK_ROW_BYTES, BLOCK_ROW_WORDS, ROW_BYTES, ROW_WORDS
from ampwatch.training.memory import MIN_LIMIT, HeldBytes, MemoryBudget, pinned
from ampwatch.training.transfer.slabs import NORM_BYTES, How, Landing, RowLabel, Slab
from ampwatch.wire.records import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from ampwatch.diagnosis.evidence.iteration import TensorRange
    from ampwatch.training.kernels.base import Kernel

logger = Log()

SLABS = 3
"""Samples of one device that may be on their way at a time."""

SLABS_SHARE = 0.5
"""Share of the memory that is left which slabs may take: the rest is for what comes later."""

BLOCK_TOPICS = frozenset(
    (Topic.GRADIENT, Topic.ACTIVATION, Topic.ACTIVATION_GRADIENT, Topic.WEIGHT)
)
"""Topics whose blocks are measured: what matmuls read, or may be kept in a block-scaled format."""

BLOCKS_APART_NS = 5_000_000_000
"""Time between two samples of a topic in which blocks are measured. What a format would do to a tensor
changes over thousands of steps, and the blocks of a module are three slots of the ring. Unit: ns."""

HOST_ROWS = 128
"""Rows of the scratch memory that host tensors are measured into, some at a time."""


class Item(NamedTuple):
    """A tensor to measure, and the names it goes by.

    Attributes:
        name: Qualified name of the parameter, buffer or module.
        module: Qualified name of the module it belongs to.
        tensor: The tensor; read before this call returns, or in stream order.
    """

    name: str
    module: str
    tensor: Tensor


WHOLE = How()

MAX_ELEMENTS = 16384
"""Elements of one output that are binned on a CPU: a share of 1 % is then known to within
0.16 % (two standard errors), and amax and non-finite elements are exact anyway."""

OUTPUT = How(most=MAX_ELEMENTS)
"""How outputs of modules are measured."""

INPUT = How(most=MAX_ELEMENTS, is_input=True)
"""How inputs of modules are measured."""


class _Piece(NamedTuple):
    """A dense part of a tensor, or a copy of it; a tensor may need several."""

    number: int  # index of the item
    item: Item  # the item
    tensor: Tensor  # the part
    dtype: str  # name of the dtype


@dataclass(eq=False)
class Sample:
    """The measurements of one iteration.

    Attributes:
        topics: Topics that were measured.
        with_blocks: Of those, the ones whose blocks are measured.
        incomplete: Topics of which a tensor was not measured, or not as it came to be.
        parts: Number of parts that a whole sample is spread over.
        device_ns: Device time of the measurements, once they have been taken. Unit: ns.
        counted_ns: The part of it in which the host did not launch them. Unit: ns.
        ranges: Measurements that have reached the host.
        slabs: Rows on their way, by device.
    """

    topics: set[Topic] = field(default_factory=set)
    with_blocks: set[Topic] = field(default_factory=set)
    incomplete: set[Topic] = field(default_factory=set)
    parts: int = 1
    device_ns: int = 0
    counted_ns: int = 0
    ranges: list[TensorRange] = field(default_factory=list)
    slabs: dict[torch.device, Slab] = field(default_factory=dict)

    def has_arrived(self) -> bool:
        """Whether all of it can be read. Never waits."""
        return all(slab.has_arrived() for slab in self.slabs.values())


class Measuring:
    """Measures tensors wherever they are.

    Args:
        kernel_for: Returns the kernel of a device; raises where there is none.
        device_rows: Tensors of one iteration that can be measured on a device; fewer, where the
            memory that is left has no room for them.
        link: Way of rows to the host.
        memory: What may be held.
        with_blocks: Whether blocks are measured as well, in some of the samples.
        clock: Time since some point in the past. Unit: ns.

    Attributes:
        dropped: Measurements given up: too many were on their way, or the iteration had more
            tensors than a slab has rows.
        refused: Tensors of the newest sample that cannot be measured.
        not_measured: Sentences about devices on which nothing is measured, and why.
        device_ns: Time that measuring has taken on devices so far. Unit: ns.
        open: Sample of the open iteration so far.
    """

    def __init__(
        self,
        kernel_for: Callable[[torch.device], Kernel],
        device_rows: int,
        link: Link | None = None,
        memory: MemoryBudget | None = None,
        *,
        with_blocks: bool = False,
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.dropped = 0
        self._with_blocks = with_blocks
        self._clock = clock
        self._blocks_ns: dict[Topic, int] = {}
        self._memory = memory or MemoryBudget(MIN_LIMIT)
        self._memory.add("transfer", self.held_bytes)
        self.refused = self._refusing = 0
        self.not_measured: dict[torch.device, str] = {}
        self.device_ns = 0
        self._kernel_for = kernel_for
        self._device_rows = device_rows
        self._link = link or Link()
        self._kernels: dict[torch.device, Kernel | None] = {}
        self._slabs: dict[torch.device, tuple[Slab, ...]] = {}
        self._free: dict[torch.device, list[Slab]] = {}
        self._scratch: Tensor | None = None
        self._norms: Tensor | None = None
        self._blocks: Tensor | None = None
        self.open = Sample()
        # Of all samples that anybody still holds; what an interrupt has lost is none of them.
        # No WeakSet: Python swallows an interrupt that comes in the callback of a weak reference.
        self._samples = [ref(self.open)]
        self._meant: dict[tuple[str, int], tuple[int, int] | None] = {}
        self._harmful: set[str] = set()

    def know(self, parameters: Iterable[tuple[str, int]], *, finite: bool) -> None:
        """Take in parameters that are finite before the first step, or are not, by name and number of elements.

        One of another size by the same name is another one, as where a vocabulary grows.
        """
        self._meant.update(dict.fromkeys(parameters, (0, 0) if finite else None))

    def blame(self, names: Iterable[str]) -> set[str]:
        """Take in what alone has made a loss or gradients non-finite; return parameters whose infinities are meant no more.

        None, if one of them was finite before the first step: its own infinities are that reason.
        """
        new = set(names) - self._harmful
        known = {name: meant for (name, _), meant in self._meant.items() if name in new}
        if (0, 0) in known.values():
            return set()
        self._harmful |= known.keys()
        return set(known)

    def prepare(self, device: torch.device) -> None:
        """Choose the kernel of a device, allocate and compile: slow, so done at set-up. Idempotent.

        Where that fails nothing is measured on the device, and ``not_measured`` says why. No
        exception leaves it: a machine without a compiler, without memory to spare or with a GPU
        that the kernel does not run on is no reason for a training not to start.
        """
        if device in self._kernels:
            return
        if reason := self._try(device):
            self._kernels[device] = None
            self.not_measured[device] = why = (
                f"ranges of tensors are not measured on {device}: {reason}. Training is not"
                " affected; `ampwatch doctor` says what the measurement needs"
            )
            logger.warning("%s", why)

    def _try(self, device: torch.device) -> str:
        """Prepare a device; return why that has failed, empty if it has not."""
        try:
            kernel = self._kernel_for(device)
            if not self._link.is_host(device):
                rows = min(self._device_rows, self._rows_that_fit())
                if not rows:
                    return "the setting `memory_bytes` leaves no room for the rows of a sample"
                slabs = tuple(
                    Slab(device, rows, self._link, with_blocks=self._with_blocks)
                    for _ in range(SLABS)
                )
                self._slabs[device], self._free[device] = slabs, list(slabs)
                slabs[0].warm_up(kernel)
            self._kernels[device] = kernel
        except Exception as error:  # compilers and drivers raise what they like
            if is_of_a_signal(error):
                raise
            self._slabs.pop(device, None)
            self._free.pop(device, None)
            words = str(error).strip().partition("\n")[0] or type(error).__name__
            return words.rstrip(".")
        return ""

    def _rows_that_fit(self) -> int:
        """Return the rows of a slab that the memory has room for, which is left now."""
        host, device = (int(SLABS_SHARE * left) // SLABS for left in self._memory.left())
        block = pinned(host + 1) // 2  # the largest that is no larger
        blocks = BLOCK_ROW_BYTES if self._with_blocks else 0
        return min(block, device) // (ROW_BYTES + NORM_BYTES + blocks)

    def held_bytes(self) -> HeldBytes:
        """Return the bytes of the slabs, and of the rows of host tensors."""
        rows = [slab.nbytes for slabs in self._slabs.values() for slab in slabs]
        tensors = (self._scratch, self._norms, self._blocks)
        scratch = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        return HeldBytes(sum(map(pinned, rows)) + scratch, sum(rows))

    def measure(self, topic: Topic, items: Sequence[Item], how: How = WHOLE) -> None:
        """Measure ``items`` as they are *now*, in stream order.

        Tensors that cannot be measured (integer, complex, meta ...) are left out and counted.

        Cost:
            Host: about 2 us a tensor and a pass over its elements. Device: one kernel
            launch per device and dtype; no sync, no allocation after the first sample, but
            for a copy of a tensor whose elements have gaps between them.
        """
        # A hook on a tensor of before may run in a capture: a kernel that is launched there would
        # be replayed with the user's graph for ever.
        if is_capturing():
            return
        if topic not in self.open.topics:
            self.open.topics.add(topic)
            self._decide_on_blocks(topic)
        try:
            for device, pieces in self._admitted(items, topic, how).items():
                self.prepare(device)
                kernel = self._kernels[device]
                if kernel is None:
                    self.open.incomplete.add(topic)
                    continue
                if self._link.is_host(device):
                    self._measure_on_host(kernel, topic, pieces, how)
                else:
                    self._measure_on_device(kernel, topic, pieces, how)
        except torch.OutOfMemoryError:
            # What is left of the device's memory is the training's. The next sample may fit.
            self.dropped += 1
            self.open.incomplete.add(topic)

    def _decide_on_blocks(self, topic: Topic) -> None:
        """Measure the blocks of a topic in the open sample, if that is due."""
        if not self._with_blocks or topic not in BLOCK_TOPICS:
            return
        now = self._clock()
        if now - self._blocks_ns.get(topic, now - BLOCKS_APART_NS) >= BLOCKS_APART_NS:
            self._blocks_ns[topic] = now
            self.open.with_blocks.add(topic)

    def _admitted(
        self, items: Sequence[Item], topic: Topic, how: How
    ) -> dict[torch.device, list[_Piece]]:
        """Return the pieces of the items that can be measured, by device."""
        by_device: dict[torch.device, list[_Piece]] = {}
        for number, item in enumerate(items):
            pieces, reason = admit(item.tensor)
            if reason:
                self._refusing += 1
                self.open.incomplete.add(topic)
            for piece in pieces:
                if how.gate is not None and piece.device != how.gate.device:
                    continue
                dtype = name_of(piece.dtype)
                by_device.setdefault(piece.device, []).append(_Piece(number, item, piece, dtype))
        return by_device

    def _measure_on_host(
        self, kernel: Kernel, topic: Topic, pieces: Sequence[_Piece], how: How
    ) -> None:
        if self._scratch is None:
            # The device by name: the user may have another default device.
            self._scratch = torch.empty((HOST_ROWS, ROW_WORDS), dtype=torch.int32, device="cpu")
        address = self._scratch.data_ptr()
        most = min(filter(None, (how.most, kernel.max_binned)), default=0)
        for begin in range(0, len(pieces), HOST_ROWS):
            some = pieces[begin : begin + HOST_ROWS]
            # Rounded up, so that no more than ``most`` elements go into the bins.
            stride = [-(-p.tensor.numel() // most) for p in some] if most else None
            tensors = [p.tensor for p in some]
            norms = blocks = 0
            if topic in self.open.with_blocks:
                if self._blocks is None:
                    shape = (HOST_ROWS, BLOCK_ROW_WORDS)
                    self._blocks = torch.empty(shape, dtype=torch.int32, device="cpu")
                kernel.measure(tensors, self._scratch, stride=stride, blocks=self._blocks)
                blocks = self._blocks.data_ptr()
            else:
                kernel.measure(tensors, self._scratch, stride=stride)
            if how.with_norms:
                if self._norms is None:
                    self._norms = torch.empty(HOST_ROWS, dtype=torch.float32, device="cpu")
                kernel.norms(tensors, self._norms)
                norms = self._norms.data_ptr()
            # Read at once: the next round overwrites the scratch rows.
            landing = _landing(topic, how, some, with_blocks=bool(blocks))
            self.open.ranges += landing.read(address, norms, blocks)

    def _measure_on_device(
        self, kernel: Kernel, topic: Topic, pieces: Sequence[_Piece], how: How
    ) -> None:
        slab = self._slab(pieces[0].tensor.device)
        # A slab does not grow: pinning more memory in a step would stop the device.
        fitting = pieces[: slab.room] if slab is not None else ()
        if len(fitting) < len(pieces):
            self.dropped += 1
            self.open.incomplete.add(topic)
            if slab is not None and slab.num_rows < self._device_rows:
                self._memory.refuse(
                    "transfer", f"no more than {slab.num_rows} tensors are measured in a step"
                )
        if slab is not None and fitting:
            tensors = [p.tensor for p in fitting]
            with_blocks = topic in self.open.with_blocks
            landing = _landing(topic, how, fitting, with_blocks=with_blocks)
            slab.measure(kernel, landing, tensors, how.gate)

    def _slab(self, device: torch.device) -> Slab | None:
        """Return the open slab of a device, ``None`` if all are on their way."""
        if device in self.open.slabs:
            return self.open.slabs[device]
        if not self._free[device]:
            samples = [sample for known in self._samples if (sample := known()) is not None]
            held = [slab for sample in samples for slab in sample.slabs.values()]
            self._free[device] = [s for s in self._slabs[device] if s not in held]
            for slab in self._free[device]:
                slab.clear()
        if not self._free[device]:
            return None
        return self.open.slabs.setdefault(device, self._free[device].pop())

    def seal(self) -> Sample | None:
        """Send off the measurements of the open iteration; ``None`` if there are none."""
        sample = self.open
        if not sample.topics:
            return None
        for slab in sample.slabs.values():
            slab.send()
        following = Sample()
        held = [known for known in self._samples if known() is not None]
        self._samples = [*held, ref(following)]
        self.open = following
        self.refused = self._refusing
        self._refusing = 0
        return sample

    def take(self, sample: Sample) -> Sequence[TensorRange]:
        """Return the measurements of a sample that has arrived, and let go of it.

        Infinities that a trained parameter had before the first step are left out: they are meant to be there, as those of
        a mask, of a vocabulary that is padded, of a limit to clamp by. How many a parameter had that was not
        known to be finite then, its first measurement says. One that was not seen then and is infinite altogether is broken:
        nothing says that a step has not done it.
        """
        for slab in sample.slabs.values():
            sample.ranges += slab.take()
            device_ns, counted_ns = slab.spent_ns()
            sample.device_ns += device_ns
            sample.counted_ns += counted_ns
        self.device_ns += sample.device_ns
        self.discard(sample)
        return [self._without_meant(r) if r.topic is Topic.WEIGHT else r for r in sample.ranges]

    def _without_meant(self, r: TensorRange) -> TensorRange:
        key = r.name, r.histogram.numel
        infs = r.histogram.positive_infs, r.histogram.negative_infs
        meant = self._meant.get(key)
        if meant is None:
            is_broken = key not in self._meant and sum(infs) == r.histogram.numel
            meant = self._meant[key] = (0, 0) if is_broken else infs
        if not any(meant) or r.name in self._harmful:
            return r
        return r._replace(histogram=r.histogram.without(0, *meant))

    def discard(self, sample: Sample) -> None:
        """Let go of a sample; rows that a device still writes are never read."""
        for device, slab in sample.slabs.items():
            slab.clear()
            self._free[device].append(slab)
        sample.slabs.clear()


def kernel_trouble(device: torch.device) -> str:
    """Return why ranges cannot be measured on a device, by trying it; empty if they can.

    Cost: seconds, if the kernel was never compiled on this machine.
    """
    return Measuring(kernel_for, 1)._try(device)  # noqa: SLF001 - of this module


def _landing(topic: Topic, how: How, pieces: Sequence[_Piece], *, with_blocks: bool) -> Landing:
    rows = [
        RowLabel(p.number, p.item.name, p.item.module, p.dtype, p.tensor.numel()) for p in pieces
    ]
    return Landing(topic, how._replace(gate=None), how.gate is not None, with_blocks, rows)
