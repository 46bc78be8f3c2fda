"""Cutting lists of tensors into units of work. The upload is tested on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ampwatch.training.kernels.work_units import LaunchTable, WorkUnits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

CPU = torch.device("cpu")
STEP = 64


def _units(per_processor: int = 4) -> WorkUnits:
    return WorkUnits(STEP, per_processor)


def _bytes_by_row(launches: Sequence[LaunchTable]) -> dict[int, list[int]]:
    """Every byte address that the units of a row cover, in order."""
    covered: dict[int, list[int]] = {}
    for dtype, _, units in launches:
        size = getattr(torch, dtype).itemsize
        for address, numel, row in units.tolist():
            covered.setdefault(row, []).extend(range(address, address + numel * size))
    return covered


def test_units_cover_every_piece_once_and_nothing_else() -> None:
    """Byte for byte, whatever the lengths and dtypes; empty pieces have no unit."""
    pieces: list[Tensor] = [
        torch.empty(n, dtype=dtype)
        for dtype in (torch.float32, torch.float16, torch.float64, torch.float8_e5m2)
        for n in (1, 63, 64, 65, 1000, 0)
    ]
    covered = _bytes_by_row(_units().of(pieces, CPU))

    assert covered == {
        row: list(range(p.data_ptr(), p.data_ptr() + p.nbytes))
        for row, p in enumerate(pieces)
        if p.numel()
    }


def test_units_begin_at_multiples_of_a_step() -> None:
    """A unit is aligned wherever its piece is."""
    piece = torch.empty(10_000)
    ((_, _, units),) = _units().of([piece], CPU)

    assert len(units) > 1
    assert all((a - piece.data_ptr()) % (STEP * 4) == 0 for a in units[:, 0].tolist())


def test_the_number_of_units_does_not_grow_with_the_elements() -> None:
    """The units are as many as were asked for, and at most one more for each piece."""
    for numel in (1_000, 100_000, 3_000_000):
        ((_, _, units),) = _units(per_processor=4).of([torch.empty(numel)], CPU)
        assert 3 <= len(units) <= 4


def test_hundreds_of_small_tensors_are_one_launch() -> None:
    """One for a dtype, not one for a tensor."""
    launches = _units().of([torch.empty(10 + i) for i in range(300)], CPU)

    assert [(launch.dtype, len(launch.units)) for launch in launches] == [("float32", 300)]


def test_pieces_that_cannot_be_read_16_bytes_at_a_time_have_a_launch_of_their_own() -> None:
    """One odd view does not slow the others down."""
    whole = torch.empty(100, dtype=torch.bfloat16)
    launches = _units(per_processor=1).of([whole, whole[1:], whole[8:]], CPU)

    assert [(x.aligned, x.units[:, 2].tolist()) for x in launches] == [(True, [0, 2]), (False, [1])]


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


def test_what_is_remembered_is_bounded() -> None:
    """A training whose addresses change with every step does not fill the device."""
    units = _units()
    memory = torch.zeros(1000)
    recent = [units.of([memory[i:]], CPU) for i in range(100)][-1]

    assert len(units._known) == 8
    assert units.of([memory[99:]], CPU) is recent
