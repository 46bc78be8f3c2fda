"""Courses in a line of text."""

from __future__ import annotations

import math

import pytest

from ampwatch.cli.top.table import BLOCKS, NOT_FINITE, spark


def test_the_marks_rise_as_the_values_do() -> None:
    """From the lowest to the highest mark, one a value."""
    assert spark(range(8), 8) == BLOCKS


def test_of_scales_doubling_is_a_step() -> None:
    """A scale that halves each step falls evenly; drawn as it is it would be one cliff."""
    scales = [2.0 ** (16 - 2 * i) for i in range(8)]

    assert spark(scales, 8, is_log=True) == BLOCKS[::-1]
    assert spark(scales, 8) == "█▂▁▁▁▁▁▁"


def test_what_never_moves_is_neither_high_nor_low() -> None:
    """A healthy scale is a flat line."""
    assert spark([65536.0] * 5, 5, is_log=True) == BLOCKS[4] * 5


@pytest.mark.parametrize("width", [1, 2, 3, 7, 10, 99, 100, 101])
def test_it_is_never_wider_than_asked(width: int) -> None:
    """Neighbours share a mark."""
    drawn = spark([float(i) for i in range(100)], width)

    assert 1 <= len(drawn) <= width
    assert list(drawn) == sorted(drawn)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite_marks_all_that_share_its_place(value: float) -> None:
    """No mean hides it."""
    values = [1.0] * 50 + [value] + [1.0] * 49

    assert spark(values, 10).count(NOT_FINITE) == 1
    assert spark([value], 1, is_log=True) == NOT_FINITE


def test_what_is_not_there_is_a_gap() -> None:
    """A step without a loss, and a scale of zero, which has no logarithm."""
    assert spark([1.0, None, 2.0], 3) == "▁ █"
    assert spark([1.0, 0.0, 2.0], 3, is_log=True) == "▁ █"
    assert spark([], 5) == ""
    assert spark([None, None], 5).strip() == ""


def test_the_newest_values_stand_last_with_none_left_out() -> None:
    """Where the length is no multiple of the width the first mark stands for fewer."""
    assert spark([0.0] * 10 + [9.0], 5)[-1] == BLOCKS[-1]
    assert spark([9.0] + [0.0] * 10, 5)[0] == BLOCKS[-1]
