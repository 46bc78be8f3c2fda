"""Counts in sentences."""

from __future__ import annotations

import pytest

from ampwatch.diagnosis.counting import counted, ordinal


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        *[(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (13, "13th")],
        *[(21, "21st"), (22, "22nd"), (23, "23rd"), (101, "101st"), (111, "111th"), (120, "120th")],
    ],
)
def test_an_ordinal_ends_as_it_is_spoken(number: int, expected: str) -> None:
    """The teens are the exception."""
    assert ordinal(number) == expected


def test_one_is_no_plural() -> None:
    """Nor is what is shown as one."""
    assert [counted(n, "step") for n in (0, 1, 0.7, 2)] == [
        "0 steps",
        "1 step",
        "1 step",
        "2 steps",
    ]
