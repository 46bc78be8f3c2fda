"""The table of a census by op, by module and by dtype."""

from __future__ import annotations

import pytest

from ampwatch.numerics.units.ops import OpKind, Phase
from ampwatch.report.op_lines import GROUPINGS, op_lines
from tests.workshop.records import census, op_row


def test_by_op_a_line_is_an_op_and_a_dtype() -> None:
    """Phases and inputs add up; a cast says from what to what."""
    lines = op_lines(
        census(
            op_row("mm", phase=Phase.FORWARD, calls=2),
            op_row("mm", phase=Phase.BACKWARD, calls=3),
            op_row("mm", "float32"),
            op_row("_to_copy", "float32", OpKind.CAST, out_dtype="float16", calls=7),
            op_row("", module="fc", flops=10**9),
        ),
        "op",
    )

    assert [(line.name, line.ran_in, line.calls, line.flops) for line in lines] == [
        ("mm", "float16", 5, 2000),
        ("mm", "float32", 1, 1000),
        ("_to_copy", "float32 -> float16", 7, 0),
    ]
    assert {line.casts for line in lines} == {0}


@pytest.mark.parametrize("by", GROUPINGS)
def test_the_heaviest_come_first_and_names_decide_ties(by: str) -> None:
    """FLOPs, then bytes, then the alphabet."""
    rows = [
        op_row("a", "d1", module="*", flops=1, bytes=9),
        op_row("b", "d2", flops=2, bytes=0),
        op_row("c", "d3", flops=0, bytes=5),
        op_row("d", "d4", flops=0, bytes=5),
        op_row("", "d1", module="m2", flops=1),
        op_row("", "d1", module="m1", flops=3),
    ]

    lines = op_lines(census(*rows), by)  # type: ignore[arg-type]

    expected = {
        "op": ["b", "a", "c", "d"],
        "module": ["m1", "m2"],
        "dtype": ["d2", "d1", "d3", "d4"],
    }
    assert [line.name for line in lines] == expected[by]
