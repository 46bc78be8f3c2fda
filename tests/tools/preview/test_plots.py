"""Tests of the figures that Plotly is given."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dashboards.board import STATE
from tests.tools.preview.test_looks import STEPS
from tools.preview.cells import heatmap, state_timeline
from tools.preview.events import Annotation
from tools.preview.fields import FieldLook
from tools.preview.intervals import TimeSpan
from tools.preview.plots import Line
from tools.preview.timeseries import time_series

pytestmark = pytest.mark.nightly

SPAN = TimeSpan(0.0, 60.0)
STACKED = {"stacking": {"mode": "normal"}, "fillOpacity": 25}


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


def test_the_axis_reaches_to_the_sum_of_stacked_series() -> None:
    """The largest of them is the bound where they are not stacked."""
    values = (line("a", 4.0, 4.0), line("b", 5.0, 5.0, place=1))
    stacked = [line(one.look.name, *one.values, **STACKED) for one in values]

    assert time_series(stacked, SPAN, []).layout.yaxis.range[1] >= 9.0
    assert time_series(values, SPAN, []).layout.yaxis.range[1] < 6.0
    assert [trace.stackgroup for trace in time_series(stacked, SPAN, []).data] == ["y", "y"]


def test_series_of_another_unit_have_an_axis_of_their_own() -> None:
    """On the right."""
    seconds = line("b", 0.1, 0.2)
    seconds.look.options["unit"] = "s"

    drawn = time_series([line("a", 1e6, 2e6), seconds], SPAN, [])

    assert [trace.yaxis for trace in drawn.data] == ["y", "y2"]
    assert (drawn.layout.yaxis.side, drawn.layout.yaxis2.side) == ("left", "right")
    assert drawn.layout.yaxis2.ticktext[-1] == "200 ms"


def test_areas_lie_between_the_thresholds_where_the_panel_wants_them() -> None:
    """Below the first bound, between two, above the last one."""
    wanted = line("a", 0.0, 10.0, thresholdsStyle={"mode": "area"})

    areas = time_series([wanted], SPAN, []).layout.shapes

    top = pytest.approx(10.5)
    assert [(area.y0, area.y1) for area in areas] == [(0.0, 2.0), (2.0, 8.0), (8.0, top)]
    assert time_series([line("a", 0.0, 10.0)], SPAN, []).layout.shapes == ()


def test_an_event_is_a_stretch_or_a_moment() -> None:
    """From its beginning to its end, or one line."""
    events = [Annotation(10.0, 20.0, "", "red"), Annotation(30.0, 30.0, "", "blue")]

    shapes = time_series([line("a", 1.0)], SPAN, events).layout.shapes

    assert [(s.type, s.x0, s.x1) for s in shapes] == [
        ("line", 10e3, 10e3),
        ("line", 20e3, 20e3),
        ("rect", 10e3, 20e3),
        ("line", 30e3, 30e3),
    ]


def test_the_area_between_two_series_is_filled() -> None:
    """Along the upper one, and back along the lower one."""
    upper, lower = line("high", 5.0, 6.0, fillBelowTo="low"), line("low", 1.0, 2.0)

    band = next(t for t in time_series([upper, lower], SPAN, []).data if t.fill == "toself")

    assert list(zip(band.x, band.y, strict=True)) == [
        (0.0, 5.0),
        (15e3, 6.0),
        (15e3, 2.0),
        (0.0, 1.0),
    ]


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
