"""Cutting lists of tensors into units of work. The upload is tested on a device."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from ampwatch.training.kernels.work_units import MAX_KEPT_BYTES, LaunchTable, WorkUnits

CPU = torch.device("cpu")
STEP = 64


def _units(per_processor: int = 4) -> WorkUnits:
    return WorkUnits(STEP, per_processor)


def _bytes_by_row(launches: Sequence[LaunchTable]) -> dict[int, list[int]]:
    """Every byte address that the units of a row cover, in order."""
    covered: dict[int, list[int]] = {}
    for dtype, units in launches:
        size = getattr(torch, dtype).itemsize
        for address, begin, end, row in units.tolist():
            covered.setdefault(row, []).extend(range(address + begin * size, address + end * size))
    return covered


def test_units_cover_every_piece_once_and_nothing_else() -> None:
    """Byte for byte, whatever lengths, dtypes and alignments; empty pieces have no unit."""
    pieces: list[Tensor] = [
        torch.empty(n + off, dtype=dtype)[off:]
        for dtype in (torch.float32, torch.float16, torch.float64, torch.float8_e5m2)
        for n in (1, 63, 64, 65, 1000, 0)
        for off in (0, 1, 3)
    ]
    covered = _bytes_by_row(_units().of(pieces, CPU))

    assert covered == {
        row: list(range(p.data_ptr(), p.data_ptr() + p.nbytes))
        for row, p in enumerate(pieces)
        if p.numel()
    }


def test_the_table_is_made_again_only_when_an_address_a_length_or_a_dtype_changes() -> None:
    """A known list costs no upload, in whatever order lists take turns."""
    units = _units()
    memory = torch.zeros(200)
    first = units.of([memory[:100]], CPU)
    other = units.of([memory[4:104]], CPU)

    assert units.of([memory[:100]], CPU) is first
    assert units.of([memory[4:104]], CPU) is other
    assert units.of([memory[:99]], CPU) is not first
    assert units.of([memory[:100].view(torch.float16)[:100]], CPU) is not first


@pytest.mark.rotating
def test_what_is_remembered_is_bounded() -> None:
    """A training whose addresses change with every step does not fill the device, nor the host."""
    for per_processor, pieces in ((1000, 1), (1, 500)):
        units = _units(per_processor)
        memory = torch.zeros(100_000)
        for i in range(1000):
            recent = units.of([memory[i:]] * pieces, CPU)

        tables = sum(launch.units.nbytes for known in units._known.values() for launch in known)
        fingerprints = sum(len(fingerprint) for _, fingerprint in units._known)
        assert tables + 200 * fingerprints < MAX_KEPT_BYTES
        assert len(units._known) > 50
        assert units.of([memory[999:]] * pieces, CPU) is recent


@pytest.mark.rotating
def test_a_list_that_alone_is_more_than_the_bound_is_measured_all_the_same() -> None:
    """And remembered until another comes."""
    units = _units(per_processor=1)
    memory = torch.zeros(MAX_KEPT_BYTES // 200 + 1)
    huge = list(memory.split(1))
    table = units.of(huge, CPU)

    assert units.of(huge, CPU) is table
    units.of([memory], CPU)
    assert units.of(huge, CPU) is not table
