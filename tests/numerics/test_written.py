"""Loss scales as they are read."""

from __future__ import annotations

import math

import pytest

from ampwatch.numerics.written import (
    counted,
    is_in_digits,
    ordinal,
    power_of_two,
    scale_argument,
    scale_text,
)


@pytest.mark.parametrize(
    ("scale", "text", "argument"),
    [
        (65536.0, "65536", "65536.0"),
        (1.0, "1", "1.0"),
        (524288.0, "524288", "524288.0"),
        (2.0**20, "2^20", "2.0**20"),
        (0.5, "2^-1", "2.0**-1"),
        (2.0**-44, "2^-44", "2.0**-44"),
        (0.75, "0.75", "0.75"),
        (3000.0, "3000", "3000.0"),
        (1500.5, "1500.5", "1500.5"),
        (1e-9 / 3, "3.33333e-10", "3.33333e-10"),
        (3e7, "3e+07", "3e+07"),
        (0.0, "0", "0.0"),
    ],
)
def test_a_scale_is_digits_or_a_power_of_two(scale: float, text: str, argument: str) -> None:
    """Digits as far as they are read at a glance; a call is given a float."""
    assert scale_text(scale) == text
    assert scale_argument(scale) == argument


@pytest.mark.parametrize("value", [0.0, -2.0, 3.0, 2.0**16 + 1, math.inf, math.nan])
def test_what_is_no_power_of_two_is_not_written_as_one(value: float) -> None:
    """Neither a neighbour of one nor what is no number."""
    assert not power_of_two(value)
    assert is_in_digits(value)


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
