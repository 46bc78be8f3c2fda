"""Rows of a step: measured where the tensors are, read when the step has ended."""

from __future__ import annotations

import ctypes
import math
import sys
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampwatch.errors import StateError
from ampwatch.lab.tape.rows import NUM_BUCKETS, RowKind, TapeRow, pack_sums
from ampwatch.numerics.exponents import ExponentHistogram
from ampwatch.numerics.units.ops import Phase
from ampwatch.training.kernels.admission import admit, local_part
from ampwatch.training.kernels.dtypes import name_of
from ampwatch.training.kernels.rows import ROW_BYTES, ROW_WORDS, decode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ampwatch.lab.training.sketch import Sketcher
    from ampwatch.training.kernels.base import Kernel

MAX_ROWS = 20_000
"""Rows of one step. What comes after them is not recorded, with a sentence."""


class RowName(NamedTuple):
    """What a row is of; see ``TapeRow``."""

    kind: RowKind
    name: str
    module: str
    phase: int = 0


@dataclass
class _Measured:
    """A row whose numbers may still be on a device."""

    known: dict[str, Any]  # the fields of its ``TapeRow`` that are known at once
    sums: torch.Tensor
    bins: torch.Tensor | None
    scale: torch.Tensor | None


@dataclass
class StepRows:
    """The rows of one step. Keeps no tensor of the training."""

    kernel_for: Callable[[torch.device], Kernel]
    sketcher: Sketcher
    missing: dict[str, None] = field(default_factory=dict)  # in sentences, what was not recorded
    _rows: list[_Measured] = field(default_factory=list)
    _writers: dict[int, int] = field(default_factory=dict)
    _exchanged: set[int] = field(default_factory=set)
    _indices: dict[RowName, int] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def add(
        self,
        name: RowName,
        tensor: torch.Tensor,
        *,
        scale: torch.Tensor | None = None,
        read: Sequence[torch.Tensor] = (),
        sources: list[int] | None = None,
    ) -> None:
        """Measure a tensor; what cannot be measured is noted.

        Args:
            name: What it is.
            tensor: Read only, and not kept.
            scale: What its values are multiplied by; one element, not changed later.
            read: What an op has read to make it.
            sources: The rows of these, if they were looked up before the op had written any.
        """
        part = local_part(tensor)
        if part is None or part.layout is not torch.strided or part.is_quantized or part.is_meta:
            self.missing[
                "some tensors hide their memory: subclasses, sparse and quantized ones"
            ] = None
            return
        if sources is None:
            sources = self.sources_of(read)
        exchanged = self._is_exchanged(part, read, is_backward=name.phase == int(Phase.BACKWARD))
        sums = self.sketcher.sketch(part)
        bins = self._bins(part)
        with self._lock:
            if len(self._rows) >= MAX_ROWS:
                self.missing[f"the step has more than {MAX_ROWS} tensors; those after them"] = None
                return
            index = self._indices.get(name, 0)
            self._indices[name] = index + 1
            dtypes = sorted({name_of(t.dtype) for t in read if t.is_floating_point()})
            known = name._asdict() | {
                "index": index,
                "dtype": name_of(part.dtype),
                "shape": list(part.shape),
                "sources": sources,
                "inputs": dtypes,
                "exchanged": exchanged,
            }
            if name.kind in _WRITES:
                self._writers[_storage(part)] = len(self._rows)
            self._rows.append(_Measured(known, sums, bins, scale))

    def exchange(self, tensors: Sequence[torch.Tensor]) -> None:
        """Take note that a collective was called with the memory of some tensors.

        What stands there from now on is of other ranks. Nobody knows when it arrives, and it need not
        be known: what reads it next waits for it.
        """
        for storage in {_storage(part) for part in _parts_of(tensors)}:
            self._exchanged.add(storage)
            writer = self._writers.get(storage)
            # A copy that only brought it there: of buckets, or of the order of buckets.
            if writer is not None and self._rows[writer].known["name"] in _COPIES:
                self._rows[writer].known["exchanged"] = True

    def _is_exchanged(
        self, part: torch.Tensor, read: Sequence[torch.Tensor], *, is_backward: bool
    ) -> bool:
        if not self._exchanged:
            return False
        storages = {_storage(each) for each in _parts_of(read)}
        mine = _storage(part)
        if mine not in storages:  # new memory, which may lie where a buffer was
            self._exchanged.discard(mine)
        # In forward what has come is measured by itself, so that what is made of it can be judged.
        return mine in self._exchanged or (is_backward and not self._exchanged.isdisjoint(storages))

    def received(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return those of some tensors whose memory a collective of this step was called with."""
        return _in_memory(tensors, self._exchanged.__contains__) if self._exchanged else []

    def strangers(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return those of some tensors whose memory no row of this step has written.

        What other ranks have written counts as well.
        """
        return _in_memory(tensors, lambda s: s not in self._writers or s in self._exchanged)

    def sources_of(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """Return the rows that have written the memory of some tensors last."""
        writers = [self._writers.get(_storage(part)) for part in _parts_of(tensors)]
        return list(dict.fromkeys(number for number in writers if number is not None))

    def _bins(self, part: torch.Tensor) -> torch.Tensor | None:
        pieces, why_not = admit(part)
        if why_not or len(pieces) != 1:
            return None
        try:
            kernel = self.kernel_for(part.device)
        except StateError:
            self.missing["exponents of tensors on this device: Triton is missing"] = None
            return None
        bins = torch.empty((1, ROW_WORDS), dtype=torch.int32, device=part.device)
        kernel.measure(pieces, bins)
        return bins

    def read(self) -> list[TapeRow]:
        """Return the rows, now that the step is over.

        Cost: waits once for each device that tensors were on; some 10 us a row.
        """
        sums = _on_host([row.sums for row in self._rows])
        bins = iter(_on_host([row.bins[0] for row in self._rows if row.bins is not None]))
        scales = {id(r.scale): r.scale for r in self._rows if r.scale is not None}
        known = {key: float(scale) for key, scale in scales.items() if scale is not None}
        return [
            _row(row, numbers.tolist(), None if row.bins is None else next(bins), known)
            for row, numbers in zip(self._rows, sums, strict=True)
        ]


_WRITES = frozenset({RowKind.WEIGHT, RowKind.BUFFER, RowKind.INPUT, RowKind.OP})
"""Kinds of rows that say where the memory of a tensor has its values from."""


_COPIES = frozenset({"copy_", "cat", "_foreach_copy_"})


def _parts_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the parts of tensors that are in the memory of this process, as far as it can be seen."""
    parts = map(local_part, tensors)
    return [p for p in parts if p is not None and p.layout is torch.strided and not p.is_meta]


def _in_memory(
    tensors: Sequence[torch.Tensor], wanted: Callable[[int], bool]
) -> list[torch.Tensor]:
    """Return those of some tensors with a part in memory that is wanted."""
    return [t for t in tensors if any(wanted(_storage(part)) for part in _parts_of([t]))]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _on_host(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors of one shape in host memory, with one copy a device."""
    by_device: dict[torch.device, list[int]] = {}
    for place, tensor in enumerate(tensors):
        by_device.setdefault(tensor.device, []).append(place)
    found: list[torch.Tensor] = list(tensors)
    for places in by_device.values():
        together = torch.stack([tensors[place] for place in places]).cpu()
        for place, tensor in zip(places, together, strict=True):
            found[place] = tensor
    return found


def _row(
    row: _Measured, numbers: list[float], bins: torch.Tensor | None, scales: dict[int, float]
) -> TapeRow:
    scale = scales.get(id(row.scale), 1.0) if row.scale is not None else 1.0
    scale = scale if scale and math.isfinite(scale) else 1.0
    histogram = ExponentHistogram()
    if bins is not None:
        data = ctypes.string_at(bins.data_ptr(), ROW_BYTES)
        histogram = decode(data, row.known["dtype"], math.prod(row.known["shape"]))
    return TapeRow(
        **row.known,
        norm=_finite(math.sqrt(max(numbers[NUM_BUCKETS], 0.0)) / scale),
        amax=histogram.amax / scale,
        zeros=histogram.zeros,
        nans=histogram.nans,
        infs=histogram.infs,
        first=histogram.first,
        counts=list(histogram.counts),
        sketch=pack_sums([_finite(x / scale) for x in numbers[:NUM_BUCKETS]]),
        scale=scale,
    )


def _finite(value: float) -> float:
    """Return a sum of float64 elements that has left the range of float64 as its largest number."""
    return math.copysign(sys.float_info.max, value) if math.isinf(value) else value
