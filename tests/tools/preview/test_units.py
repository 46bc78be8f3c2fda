"""Tests of how numbers are written, against what Grafana writes."""

import math

import pytest

from tools.preview.units import written

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "none", "0"),
        (3.0, "none", "3"),
        (0.5, "none", "0.500"),
        (12.34, "", "12.3"),
        (1234.6, "none", "1235"),
        (-0.25, "none", "-0.250"),
        (65536.0, "short", "65.5 K"),
        (1e9, "short", "1 Bil"),
        (0.015625, "short", "0.0156"),
        (1000.0, "short", "1 K"),
        (0.0339, "percentunit", "3.39%"),
        (1.0, "percentunit", "100%"),
        (1024.0, "bytes", "1 KiB"),
        (62 * 2.0**30, "bytes", "62 GiB"),
        (9e8, "Bps", "900 MB/s"),
        (1.98e9, "hertz", "1.98 GHz"),
        (0.2, "watt", "200 mW"),
        (1620.0, "watt", "1.62 kW"),
        (9.89e14, "flops", "989 TFLOPS"),
        (74.0, "celsius", "74 °C"),
        (1500.0, "ops", "1.50K ops/s"),
        (0.0, "s", "0 s"),
        (0.000002, "s", "2 µs"),
        (0.235, "s", "235 ms"),
        (59.0, "s", "59 s"),
        (90.0, "s", "1.50 mins"),
        (7200.0, "s", "2 hours"),
        (172800.0, "s", "2 days"),
        (6.5536e4, "sci", "6.55e+04"),
        (1.0, "bool_yes_no", "Yes"),
        (1.7e12, "dateTimeAsIso", "2023-11-14 22:13:20"),
    ],
)
def test_a_value_is_written_as_grafana_writes_it(value: float, unit: str, text: str) -> None:
    """Three digits that matter, and a prefix where the unit has one."""
    assert written(value, unit) == text


def test_decimals_are_those_that_the_panel_asks_for() -> None:
    """None, some, and more than there are."""
    assert [written(2.345, "short", n) for n in (0, 1, 4)] == ["2", "2.3", "2.3450"]
    assert written(1500.0, "short", 2) == "1.50 K"


def test_what_is_not_a_number_is_said_to_be_none() -> None:
    """A loss that is NaN or infinite is what this project is about."""
    assert [written(v, "s") for v in (math.nan, math.inf, -math.inf)] == ["NaN", "∞", "-∞"]


def test_a_unit_that_is_not_known_is_refused_in_words() -> None:
    """Rather than a number without its unit."""
    with pytest.raises(ValueError, match=r"expected one of the units .*, got 'furlong'; add it"):
        written(1.0, "furlong")
