"""What gradients would lose in block-scaled formats, as the what-if panel gets it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import torch

from ampwatch.host.fleet.ranges import MAX_BLOCKED
from ampwatch.host.page.whatif_state import Asked, WhatIfs
from ampwatch.numerics.formats import FORMATS
from ampwatch.wire.records import Operand
from tests.numerics.block_oracle import operand_of, quantised, sqnr_db
from tests.workshop.fleets import fleet_of
from tests.workshop.records import FACTS, identity, ranges

if TYPE_CHECKING:
    from ampwatch.host.page.rows import State
    from ampwatch.wire.records import RangeRecord

RUN = identity().run


def _values() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(128, 32, generator=generator)
    return values * torch.exp2(torch.randn(128, 32, generator=generator))


def _measured(values: torch.Tensor, **changes: object) -> RangeRecord:
    measured = operand_of(Operand.GRAD_OUTPUT, values)
    return ranges(exponents=measured.histogram, blocks=measured.blocks, **changes)


def _losses(*records: RangeRecord, module: str | None = None) -> list[State]:
    state = WhatIfs(fleet_of(FACTS, *records)).of(Asked(RUN, "0", module))
    assert state is not None
    return list(state["blocked"])


def test_the_words_are_of_values_that_are_really_cast() -> None:
    """Of each block-scaled format, in the order of their bits."""
    values = _values()
    found = {one["name"]: one["words"] for one in _losses(_measured(values))}
    assert list(found) == [name for name, fmt in FORMATS.items() if fmt.block is not None]
    for name, words in found.items():
        cast = quantised(values.double().reshape(-1), name)
        numbers = re.fullmatch(r"([\d.]+) dB, ([\d.]+) % to zero", words)
        assert numbers is not None
        assert float(numbers[1]) == pytest.approx(
            sqnr_db(values.double().reshape(-1), cast), abs=1.5
        )
        assert float(numbers[2]) == pytest.approx(100 * float((cast == 0).double().mean()), abs=1.0)


def test_formats_stand_under_what_shares_a_scale() -> None:
    """MX apart from NVFP4."""
    groups = {one["name"]: one["group"] for one in _losses(_measured(_values()))}
    assert groups["mxfp4"] == groups["mxint8"] == "MX: a scale for 32 elements"
    assert groups["nvfp4"] == "NVFP4: a scale for 16 elements"


def test_samples_without_blocks_leave_those_that_were_measured() -> None:
    """Blocks are measured in some of the samples only; each module has its own."""
    small, large = _measured(_values() / 64, module="head", step=3), _measured(_values(), step=3)
    records = (small, large, ranges(step=9), ranges("head", step=9))

    assert _losses(*records) == _losses(large)
    assert _losses(*records, module="head") == _losses(small, large, module="head")


def test_nothing_is_said_of_what_was_not_measured() -> None:
    """No blocks, nothing but zeros."""
    assert _losses(ranges()) == []
    assert _losses(_measured(torch.zeros(4, 32))) == []


def test_the_blocks_that_are_kept_are_bounded() -> None:
    """By as many modules as are measured at most."""
    record = _measured(_values(), module="m")
    many = [_renamed(record, f"m.{n}") for n in range(MAX_BLOCKED + 5)]
    (view,) = fleet_of(FACTS, *many).ranks()

    assert len(view.ranges.blocked) == MAX_BLOCKED
    assert "m.0" not in view.ranges.blocked


def _renamed(record: RangeRecord, module: str) -> RangeRecord:
    return ranges(module, exponents=record.histogram, blocks=record.blocks)
