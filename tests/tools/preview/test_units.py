"""Tests of how numbers are written, against what Grafana writes."""

import math

import pytest

from tools.preview.units import written

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "none", "0"),
        (0.5, "none", "0.500"),
        (1234.6, "none", "1235"),
        (65536.0, "short", "65.5 K"),
        (0.0339, "percentunit", "3.39%"),
        (1024.0, "bytes", "1 KiB"),
        (9e8, "Bps", "900 MB/s"),
        (0.2, "watt", "200 mW"),
        (9.89e14, "flops", "989 TFLOPS"),
        (74.0, "celsius", "74 °C"),
        (1500.0, "ops", "1.50K ops/s"),
        (0.000002, "s", "2 µs"),
        (90.0, "s", "1.50 mins"),
        (6.5536e4, "sci", "6.55e+04"),
        (1.0, "bool_yes_no", "Yes"),
        (1.7e12, "dateTimeAsIso", "2023-11-14 22:13:20"),
    ],
)
def test_a_value_is_written_as_grafana_writes_it(value: float, unit: str, text: str) -> None:
    """Three digits that matter, and a prefix where the unit has one."""
    assert written(value, unit) == text


def test_what_is_not_a_number_is_said_to_be_none() -> None:
    """A loss that is NaN or infinite is what this project is about."""
    assert [written(v, "s") for v in (math.nan, math.inf, -math.inf)] == ["NaN", "∞", "-∞"]


def test_a_unit_that_is_not_known_is_refused_in_words() -> None:
    """Rather than a number without its unit."""
    with pytest.raises(ValueError, match=r"expected one of the units .*, got 'furlong'; add it"):
        written(1.0, "furlong")
