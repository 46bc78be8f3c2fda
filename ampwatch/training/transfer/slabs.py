"""Rows of measurements on a device, on their way to the host, and their labels."""

from __future__ import annotations

import ctypes
import math
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple

import torch

from ampwatch.diagnosis.evidence.iteration import TensorRange
from ampwatch.numerics.blocks import BLOCK_SIZES, merged_blocks
from ampwatch.numerics.exponents import merged
from ampwatch.numerics.formats import OF_TRAINING
from ampwatch.training.kernels.dtypes import dtypes_of
from ampwatch.training.kernels.rows import (
    BLOCK_ROW_BYTES,
    BLOCK_ROW_WORDS,
    ROW_BYTES,
    ROW_WORDS,
    decode,
    decode_blocks,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from ampwatch.numerics.blocks import BlockHistogram
    from ampwatch.numerics.exponents import ExponentHistogram
    from ampwatch.training.devices import Event, Link
    from ampwatch.training.kernels.base import Kernel
    from ampwatch.wire.records import Topic

NORM_BYTES = 4
"""Size of a norm, a float32."""

TIMED_CALLS = 16
"""Measurements of a slab whose time on the device is taken; the rest counts as their mean."""


class RowLabel(NamedTuple):
    """Label of a row: the tensor that it measures.

    Attributes:
        number: Index of the tensor in its measurement: a long one has several rows.
        name: Qualified name of the parameter, buffer or module.
        module: Qualified name of the module that holds it.
        dtype: Name of the dtype.
        numel: Elements in this row.
    """

    number: int
    name: str
    module: str
    dtype: str
    numel: int


class How(NamedTuple):
    """Manner of measuring, and facts about the values.

    Attributes:
        scaled: Whether the values are multiplied by the loss scale.
        span: Number of iterations that updates are the sum of.
        most: Elements of a tensor that go into the bins; of a larger one on the host every
            k-th block of 4096 does, with the smallest k that fits. Amax, NaN and infinities
            are still found among all elements. 0 takes as many as the kernel bears.
        gate: A device scalar; where it reads 0 nothing is measured. Tensors of other devices
            are left alone.
        with_norms: Whether their L2 norms are measured as well: another pass.
        is_input: Whether modules were given the values, instead of having returned them.
    """

    scaled: bool = False
    span: int = 1
    most: int = 0
    gate: Tensor | None = None
    with_norms: bool = False
    is_input: bool = False


class Landing(NamedTuple):
    """The rows of one measurement. Tensors are not kept: they may be freed before it arrives.

    Attributes:
        topic: Topic of the values.
        how: How they are measured, without the gate.
        is_gated: Whether there is one.
        with_blocks: Whether their blocks are.
        rows: Label of each row; rows of one tensor follow one another.
    """

    topic: Topic
    how: How
    is_gated: bool
    with_blocks: bool
    rows: list[RowLabel]

    def read(self, address: int, norms: int, blocks: int) -> Iterator[TensorRange]:
        """Yield the rows that lie at ``address`` under their names.

        Args:
            address: Of the first row.
            norms: Address of the norm of the first, a float32; not read without ``with_norms``.
            blocks: Address of the blocks of the first; not read without ``with_blocks``.
        """
        held: list[ExponentHistogram] = []
        held_blocks: list[BlockHistogram] = []
        how = self.how
        squares = nothing = 0.0 if how.with_norms else math.nan
        for index, row in enumerate(self.rows):
            words = ctypes.string_at(address + index * ROW_BYTES, ROW_BYTES)
            held.append(decode(words, row.dtype, row.numel))
            if self.with_blocks:
                words = ctypes.string_at(blocks + index * BLOCK_ROW_BYTES, BLOCK_ROW_BYTES)
                held_blocks += decode_blocks(words, held[-1])
            if how.with_norms:
                squares += ctypes.c_float.from_address(norms + index * NORM_BYTES).value ** 2
            following = self.rows[index + 1 : index + 2]
            if following and following[0].number == row.number:
                continue
            histogram = merged(held) if len(held) > 1 else held[0]
            norm = math.sqrt(squares)
            of_tensor = _by_size(held_blocks)
            held, squares, held_blocks = [], nothing, []
            # Behind a closed gate the kernel has left the row empty: nothing was measured.
            if not self.is_gated or histogram.binned or histogram.nonfinite:
                yield TensorRange(
                    self.topic,
                    row.name,
                    row.module,
                    row.dtype,
                    histogram,
                    how.scaled,
                    how.span,
                    norm,
                    of_tensor,
                    how.is_input,
                )


def _by_size(blocks: Sequence[BlockHistogram]) -> tuple[BlockHistogram, ...]:
    """Return the blocks of a tensor, those of its pieces together."""
    if len(blocks) <= len(BLOCK_SIZES):
        return tuple(blocks)
    return tuple(merged_blocks(blocks, size) for size in BLOCK_SIZES)


class Slab:
    """Rows on a device, their landing place in pinned memory, and the event between them.

    Args:
        device: Device of the rows.
        num_rows: Number of rows; one per tensor.
        link: Way of the rows to the host.
        with_blocks: Whether there is memory for blocks as well, which takes as much again.

    Attributes:
        room: Rows that are free.
    """

    def __init__(
        self, device: torch.device, num_rows: int, link: Link, *, with_blocks: bool = False
    ) -> None:
        self.num_rows = self.room = num_rows
        self._device = device
        self._link = link
        self._rows = torch.empty((num_rows, ROW_WORDS), dtype=torch.int32, device=device)
        # Pinned as float32 by the link, and read as the words they are: a view has the same bytes.
        block_words = BLOCK_ROW_WORDS if with_blocks else 0
        pinned = link.landing_place(num_rows * (ROW_WORDS + 1 + block_words))
        self._pinned = pinned[: num_rows * ROW_WORDS].view(torch.int32)
        self._pinned_norms = pinned[num_rows * ROW_WORDS : num_rows * (ROW_WORDS + 1)]
        self._pinned_blocks = pinned[num_rows * (ROW_WORDS + 1) :].view(torch.int32)
        self._blocks = torch.empty((num_rows, block_words), dtype=torch.int32, device=device)
        self._norms = torch.empty(num_rows, dtype=torch.float32, device=device)
        self._event: Event = link.make_event(device)
        self._timers = [
            (link.make_timer(device), link.make_timer(device)) for _ in range(TIMED_CALLS)
        ]
        self._landings: list[Landing] = []
        self._host_ns = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the rows, on the device and again in pinned memory. Unit: B."""
        return self._rows.nbytes + self._norms.nbytes + self._blocks.nbytes

    def warm_up(self, kernel: Kernel) -> None:
        """Have all compiled that mixed-precision training launches.

        Cost: about a second for each of its dtypes, once on a machine.
        """
        for dtype in dtypes_of(OF_TRAINING):
            zeros = [torch.zeros(16, dtype=dtype, device=self._device)]
            kernel.measure(zeros, self._rows)
            kernel.norms(zeros, self._norms)
            if self._blocks.numel():
                kernel.measure_blocks(zeros, self._rows, self._blocks)
        # Of a kernel for GPUs the part that reads a gate is the same for all dtypes.
        gate = torch.zeros(1, device=self._device)
        kernel.measure([torch.zeros(16, device=self._device)], self._rows, gate=gate)

    @property
    def _used(self) -> int:
        return self.num_rows - self.room

    def measure(
        self, kernel: Kernel, landing: Landing, tensors: Sequence[Tensor], gate: Tensor | None
    ) -> None:
        """Launch the kernel on the current stream, into rows that are free."""
        timers = self._timers[len(self._landings) : len(self._landings) + 1]
        stream = self._link.stream(self._device)
        began_ns = perf_counter_ns()
        for begin, _ in timers:
            begin.record(stream)
        kernel.measure(tensors, self._rows[self._used :], gate=gate)
        if landing.how.with_norms:
            kernel.norms(tensors, self._norms[self._used :])
        if landing.with_blocks:
            rows, blocks = self._rows[self._used :], self._blocks[self._used :]
            kernel.measure_blocks(tensors, rows, blocks)
        for _, end in timers:
            end.record(stream)
        if timers:
            self._host_ns += perf_counter_ns() - began_ns
        self._landings.append(landing)
        self.room -= len(tensors)

    def send(self) -> None:
        """Copy the used rows to the host, in stream order."""
        used = self._used * ROW_WORDS
        self._pinned[:used].copy_(self._rows.view(-1)[:used], non_blocking=True)
        if any(landing.how.with_norms for landing in self._landings):
            norms = self._norms[: self._used]
            self._pinned_norms[: self._used].copy_(norms, non_blocking=True)
        if any(landing.with_blocks for landing in self._landings):
            blocks = self._blocks[: self._used].view(-1)
            self._pinned_blocks[: len(blocks)].copy_(blocks, non_blocking=True)
        self._event.record(self._link.stream(self._device))

    def has_arrived(self) -> bool:
        """Whether the rows are in host memory. Never waits."""
        return self._link.may_ask((self._device,)) and self._event.query()

    def take(self) -> Iterator[TensorRange]:
        """Yield the measurements that have arrived."""
        address, norms = self._pinned.data_ptr(), self._pinned_norms.data_ptr()
        blocks = self._pinned_blocks.data_ptr()
        for landing in self._landings:
            yield from landing.read(address, norms, blocks)
            blocks += len(landing.rows) * BLOCK_ROW_BYTES
            address += len(landing.rows) * ROW_BYTES
            norms += len(landing.rows) * NORM_BYTES

    def spent_ns(self) -> tuple[int, int]:
        """Return the device time of the measurements that have arrived, and what of it counts.

        A device that is idle runs the first kernel while the host is about to launch the second:
        the time between the two timers is then the host's, which is accounted for already. What
        counts is the time by which the device took longer. Unit of both: ns.
        """
        timed = self._timers[: len(self._landings)]
        if not timed:
            return 0, 0
        # Neither waits: both timers lie before the event that has passed.
        nanoseconds = 1e6 * sum(begin.elapsed_time(end) for begin, end in timed)
        share = len(self._landings) / len(timed)
        counts = max(nanoseconds - self._host_ns, 0.0)
        return int(nanoseconds * share), int(counts * share)

    def clear(self) -> None:
        """Begin anew; rows that are still being written are never read."""
        self._host_ns = 0
        self._landings.clear()
        self.room = self.num_rows
