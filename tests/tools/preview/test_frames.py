"""Tests of the tables that answers become, and of what transformations make of them."""

from __future__ import annotations

from typing import Any

import pytest

from tools.preview.events import Annotation, events
from tools.preview.frames import Frame, frames
from tools.preview.intervals import Interval, TimeSpan
from tools.preview.prometheus import Series
from tools.preview.questions import Question
from tools.preview.transformations import transformed

pytestmark = pytest.mark.nightly

STEP = 15.0


def question(ref_id: str = "A", **model: Any) -> Question:
    fine = Interval(TimeSpan(0.0, 60.0), STEP, 60.0)
    return Question("Panel", ref_id, "", "", instant=False, interval=fine, model=model)


def series(*values: float, start: float = 0.0, **labels: str) -> Series:
    return Series(labels, [(start + STEP * i, v) for i, v in enumerate(values)])


def table(ref_id: str, *answer: Series) -> list[Frame]:
    return frames(question(ref_id, format="table"), answer, alone=False)


def content(frame: Frame) -> dict[str, list[Any]]:
    return {f.name: f.values for f in frame.fields}


def test_a_series_becomes_a_frame_with_the_name_of_its_legend() -> None:
    """With a gap where samples are missing, so that no line is drawn over it."""
    there = Series({"run": "gpt", "rank": "1"}, [(0.0, 1.0), (15.0, 2.0), (60.0, 3.0)])

    (frame,) = frames(question(legendFormat="{{run}} rank {{ rank }}{{none}}"), [there])

    assert content(frame) == {
        "Time": [0.0, 15000.0, 30000.0, 60000.0],
        "gpt rank 1": [1.0, 2.0, None, 3.0],
    }


def test_buckets_of_a_heatmap_are_counts_between_their_bounds() -> None:
    """Prometheus counts from below; the bounds come in any order."""
    answer = [series(9.0, 9.0, le="+Inf"), series(1.0, 2.0, le="0.5"), series(5.0, 8.0, le="16.0")]

    (frame,) = frames(question(format="heatmap", legendFormat="{{le}}"), answer)

    assert content(frame) == {
        "Time": [0.0, 15000.0],
        "0.5": [1.0, 2.0],
        "16.0": [4.0, 6.0],
        "+Inf": [4.0, 1.0],
    }


def test_merged_tables_have_a_row_for_each_set_of_labels() -> None:
    """A row that one query does not answer stays empty there, whatever the order of answers."""
    steps = table("A", series(4.0, run="gpt"), series(2.0, run="bert"))
    states = table("B", series(0.0, run="gpt"), series(1.0, run="llama"))

    (frame,) = transformed(steps + states, [{"id": "merge", "options": {}}])

    assert content(frame) == {
        "Time": [0.0, 0.0, 0.0],
        "run": ["gpt", "bert", "llama"],
        "Value #A": [4.0, 2.0, None],
        "Value #B": [0.0, None, 1.0],
    }


def test_organized_fields_are_left_out_put_in_order_and_renamed() -> None:
    """Columns without a place come last."""
    (found,) = table("A", series(4.0, run="gpt", rank="1", host="a"))
    options = {
        "excludeByName": {"Time": True, "run": False},
        "indexByName": {"Value #A": 0, "run": 1},
        "renameByName": {"Value #A": "Steps", "run": "Run"},
    }

    (frame,) = transformed([found], [{"id": "organize", "options": options}])

    assert frame.names == ["Steps", "Run", "host", "rank"]
    assert content(frame)["Steps"] == [4.0]


def test_a_transformation_that_no_dashboard_uses_is_refused_in_words() -> None:
    """Rather than drawn as if it were not there."""
    with pytest.raises(ValueError, match=r"expected one of .* merge, organize, got 'groupBy'"):
        transformed([], [{"id": "groupBy"}])


def test_an_annotation_is_a_stretch_of_samples_above_zero() -> None:
    """A gap, or a zero, ends it."""
    answer = [
        Series(
            {"alertname": "Collapse", "run": "gpt"},
            [(0.0, 1.0), (15.0, 1.0), (30.0, 0.0), (45.0, 1.0), (105.0, 1.0), (120.0, 1.0)],
        )
    ]
    asked = question(textFormat="{{alertname}} of {{run}}", iconColor="red")

    assert events(asked, answer) == [
        Annotation(0.0, 15.0, "Collapse of gpt", "red"),
        Annotation(45.0, 45.0, "Collapse of gpt", "red"),
        Annotation(105.0, 120.0, "Collapse of gpt", "red"),
    ]
