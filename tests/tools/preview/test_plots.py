"""Tests of the figures that Plotly is given."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dashboards.board import STATE
from tests.tools.preview.test_looks import STEPS
from tools.preview.cells import heatmap, state_timeline
from tools.preview.fields import FieldLook
from tools.preview.intervals import TimeSpan
from tools.preview.plots import Line
from tools.preview.timeseries import time_series

pytestmark = pytest.mark.nightly

SPAN = TimeSpan(0.0, 60.0)


def line(name: str, *values: float | None, place: int = 0, **custom: Any) -> Line:
    times = [15e3 * i for i in range(len(values))]
    look = FieldLook(
        name, {"unit": "short", "thresholds": STEPS, "mappings": [STATE]}, custom, place
    )
    return Line(look, times, list(values), 15e3)


def test_a_gap_stays_a_gap_and_a_point_without_neighbours_is_seen() -> None:
    """Grafana draws it as a point, for of a line nothing would be left."""
    drawn = time_series([line("a", 1.0, 2.0, None, 3.0, None)], SPAN, [])

    stroke, points = drawn.data
    assert stroke.y == (1.0, 2.0, None, 3.0, None)
    assert not stroke.connectgaps
    assert (points.mode, points.x, points.y) == ("markers", (45e3,), (3.0,))


def test_equal_neighbours_of_a_timeline_are_one_band_with_its_word() -> None:
    """A gap, or another state, ends it; the last one lasts as long as a step."""
    bands = state_timeline([line("a", 0.0, 0.0, 1.0, None, 0.0)], SPAN, merge=True).data

    assert [(b.base[0], b.x[0], b.text[0]) for b in bands] == [
        (0.0, 30e3, "running"),
        (30e3, 15e3, "failed"),
        (60e3, 15e3, "running"),
    ]


def test_empty_buckets_are_left_out_of_a_heatmap() -> None:
    """The others are darker by the power that the panel says."""
    options = {
        "filterValues": {"le": 1e-9},
        "color": {"exponent": 0.5},
        "yAxis": {"unit": "sci"},
    }

    drawn = heatmap([line("0.5", 0.0, 4.0), line("+Inf", 16.0, None)], options, SPAN)

    assert [list(row) for row in drawn.data[0].z] == [[None, 2.0], [4.0, None]]
    assert drawn.layout.yaxis.ticktext == ("5.00e-01", "+Inf")
