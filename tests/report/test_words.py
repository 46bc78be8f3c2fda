"""Numbers, spans and powers as people read them."""

import math

import pytest

from ampwatch.report.words import (
    number,
    percent,
    plain,
    plural,
    power_of_two,
    quantity,
    scale,
    step_time,
    time_span,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (65536.0, "65\u202f536"),
        (-1234567, "-1\u202f234\u202f567"),
        (0.0078125, "0.007812"),
        (2.0**-149, "1.401e-45"),
        (3.0e38, "3e+38"),
        (math.nan, "NaN"),
        (math.inf, "infinity"),
        (-math.inf, "-infinity"),
    ],
)
def test_a_number_is_grouped_or_rounded_and_never_breaks_a_line(value: float, text: str) -> None:
    """Whole numbers are grouped by a narrow no-break space, others have four digits."""
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "less than 1 s"),
        (0.4, "less than 1 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "119 min"),
        (7200, "2 h"),
        (172800, "2 d"),
    ],
)
def test_a_span_is_reported_in_the_largest_unit_of_which_there_are_two(
    seconds: float, text: str
) -> None:
    """A user reads "2 h", not "7200 s"; and never a negative time after a change of the clock."""
    assert time_span(seconds) == text


@pytest.mark.parametrize("exponent", [-149, -1, 0, 1, 16, 127])
def test_a_power_of_two_is_reported_as_one(exponent: int) -> None:
    """The exponent is written in superscript digits."""
    expected = "2" + "".join("⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".index(c)] for c in str(exponent))

    assert power_of_two(2.0**exponent) == expected


@pytest.mark.parametrize("value", [0.0, -2.0, 3.0, 65537.0, math.nan, math.inf])
def test_what_is_no_power_of_two_is_not_reported_as_one(value: float) -> None:
    """A scale set by hand may be anything."""
    assert power_of_two(value) == ""


def test_one_is_singular_and_all_else_plural() -> None:
    """1 step, 0 steps, 2 steps."""
    assert [plural(n, "step") for n in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]


def test_a_step_below_a_second_is_reported_in_milliseconds() -> None:
    """Three significant digits are as many as a step time has."""
    assert [step_time(s) for s in (0.0315, 0.312, 1.5)] == ["31.5 ms", "312 ms", "1.5 s"]


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0 %"),
        (1.0, "100 %"),
        (0.031, "3.1 %"),
        (0.1234, "12.3 %"),
        (0.000123, "0.012 %"),
        (2e-6, "0.0002 %"),
        (1e-9, "under 0.0001 %"),
        (0.99999, "over 99.9 %"),
        (0.5, "50 %"),
    ],
)
def test_a_share_is_nothing_or_all_only_if_it_is(share: float, text: str) -> None:
    """Rounding never makes a lost element look like none."""
    assert percent(share) == text


@pytest.mark.parametrize(
    ("value", "text"), [(2.0**-44, "2⁻⁴⁴"), (65536.0, "2¹⁶"), (1000.0, "1\u202f000")]
)
def test_a_loss_scale_is_a_power_of_two_unless_it_was_set_by_hand(value: float, text: str) -> None:
    """Charts write it so, and 5.684e-14 is read by nobody."""
    assert scale(value) == text


def test_what_is_plain_has_no_character_that_a_locale_may_lack() -> None:
    """A power keeps being one."""
    assert plain("2⁻⁴⁴ of 65\u202f536") == "2^-44 of 65536"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (65504.0, "65\u202f504"),
        (0.25, "0.25"),
        (2.0**-29, "2⁻²⁹"),
        (3.2e-14, "3.2e-14 (about 2⁻⁴⁵)"),
        (-1e20, "-1e+20 (about -2⁶⁶)"),
        (math.nan, "NaN"),
        (math.inf, "infinity"),
    ],
)
def test_what_needs_an_exponent_has_one_of_two(value: float, text: str) -> None:
    """So that it can be found on the axis of a chart."""
    assert quantity(value) == text
