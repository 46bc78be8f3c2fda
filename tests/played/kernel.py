"""The kernel of the played device: keeps what the Triton kernel promises, and checks what it is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ampwatch.training import devices
from ampwatch.training.kernels.choice import KERNELS
from ampwatch.training.kernels.eager import EagerKernel
from ampwatch.training.kernels.norms import fill_norms
from ampwatch.training.kernels.rows import AMAX_KEY, AMIN_KEY, NO_AMIN, ROW_WORDS
from ampwatch.training.kernels.work_units import WorkUnits
from tests.played.machine import Entry, blocks_of, machine
from tests.played.ops import NAME, alias, at

STEP = 64
PER_PROCESSOR = 2


class PlayedKernel:
    """Measures what lies at the addresses of a table when the device gets there.

    Attributes:
        is_broken: What the first launch raises, as a compiler that is not there does.
    """

    name = "played"
    max_binned = 0
    is_broken: Exception | None = None
    norms = staticmethod(fill_norms)

    def __init__(self) -> None:
        self._units = WorkUnits(STEP, PER_PROCESSOR)

    def measure(
        self,
        pieces: Sequence[Tensor],
        rows: Tensor,
        *,
        stride: Sequence[int] | None = None,
        gate: Tensor | None = None,
        blocks: Tensor | None = None,
    ) -> None:
        """Launch."""
        if self.is_broken is not None:
            raise self.is_broken
        if not pieces:
            return
        with devices.on(rows.device):
            launches = self._units.of(pieces, rows.device)
            known = [] if gate is None else [gate]
            machine.compile(f"prepare, gated: {gate is not None}")
            _launch("prepare", [rows, *known], _Prepare(len(pieces), rows, gate))
            for dtype, units in launches:
                machine.compile(f"measure, {dtype}")
                used = [rows, units, *known, *(p for p in pieces if p.numel())]
                _launch("measure", used, _Measure(getattr(torch, dtype), units, rows, gate))
        if blocks is not None:
            self.measure_blocks(pieces, rows, blocks)

    def measure_blocks(self, pieces: Sequence[Tensor], rows: Tensor, out: Tensor) -> None:
        """Launch."""
        if not pieces:
            return
        with devices.on(rows.device):
            machine.compile("measure_blocks")
            used = [rows, out, *(p for p in pieces if p.numel())]
            _launch("measure_blocks", used, _MeasureBlocks(pieces, rows, out))


def _launch(name: str, used: Sequence[Tensor], work: Any) -> None:
    stream = machine.current_stream(used[0].device.index)
    addresses = [t.untyped_storage().data_ptr() for t in used]
    machine.put(Entry(name, work, blocks_of(addresses)), stream)


def _is_closed(gate: Tensor | None) -> bool:
    return gate is not None and gate.reshape(-1)[0].item() == 0.0


class _Prepare:
    def __init__(self, count: int, rows: Tensor, gate: Tensor | None) -> None:
        self.rows = alias(rows)[:count]
        self.gate = None if gate is None else alias(gate)

    def __call__(self) -> None:
        self.rows.zero_()
        if not _is_closed(self.gate):
            self.rows[:, AMIN_KEY : AMIN_KEY + 2].view(torch.int64).fill_(NO_AMIN)


class _Measure:
    def __init__(
        self, dtype: torch.dtype, units: Tensor, rows: Tensor, gate: Tensor | None
    ) -> None:
        self.dtype = dtype
        self.units = alias(units)
        self.rows = alias(rows)
        self.gate = None if gate is None else alias(gate)

    def __call__(self) -> None:
        if _is_closed(self.gate):
            return
        for address, begin, end, row in self.units.tolist():
            size = self.dtype.itemsize
            like = torch.empty(end - begin, dtype=self.dtype)
            memory = at(address + begin * size, like.nbytes, like)
            found = torch.empty((1, ROW_WORDS), dtype=torch.int32)
            EagerKernel().measure([memory], found)
            _add(self.rows[row], found[0])


class _MeasureBlocks:
    def __init__(self, pieces: Sequence[Tensor], rows: Tensor, out: Tensor) -> None:
        self.pieces = [alias(p) for p in pieces]
        self.rows = alias(rows)
        self.out = alias(out)

    def __call__(self) -> None:
        EagerKernel().measure_blocks(self.pieces, self.rows, self.out)


def _add(row: Tensor, found: Tensor) -> None:
    """Add the counts of a unit, and take the larger and the smaller key."""
    row[:AMAX_KEY] += found[:AMAX_KEY]
    for word, chosen in ((AMAX_KEY, torch.maximum), (AMIN_KEY, torch.minimum)):
        here = row[word : word + 2].view(torch.int64)
        here.copy_(chosen(here, found[word : word + 2].view(torch.int64)))


def register() -> None:
    """Have ampwatch measure ranges on the played device."""
    KERNELS[NAME] = PlayedKernel
