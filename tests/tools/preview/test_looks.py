"""Tests of how values look and where panels stand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.dashboards.board import STATE, board, panel, row
from tools.preview.axes import axis_of
from tools.preview.fields import FieldLook, looks
from tools.preview.frames import NUMBER, Field
from tools.preview.grid import boxes

pytestmark = pytest.mark.nightly

STEPS = {
    "mode": "absolute",
    "steps": [
        {"value": None, "color": "green"},
        {"value": 2, "color": "orange"},
        {"value": 8, "color": "red"},
    ],
}
RED, ORANGE, GREEN = "#f2495c", "#ff9830", "#73bf69"


def look(name: str = "value", *overrides: Any, **defaults: Any) -> FieldLook:
    config = {"defaults": defaults, "overrides": overrides}
    (found,) = looks(config, [(name, Field(name, NUMBER, [1.0]))])
    return found


def override(options: str, by: str = "byName", **properties: Any) -> dict[str, Any]:
    given = [{"id": k.replace("__", "."), "value": v} for k, v in properties.items()]
    return {"matcher": {"id": by, "options": options}, "properties": given}


def test_a_value_has_the_colour_of_the_highest_threshold_that_it_reaches() -> None:
    """The first one has no lower bound."""
    shown = look(thresholds=STEPS, color={"mode": "thresholds"})

    colours = [shown.colour(v) for v in (-5.0, 1.9, 2.0, 7.0, 8.0, 100.0)]

    assert colours == [GREEN, GREEN, ORANGE, ORANGE, RED, RED]


def test_a_mapping_gives_a_word_and_a_colour() -> None:
    """By the number as it is written without decimals, or by where it lies."""
    near = {
        "type": "range",
        "options": {
            "from": 3.3e38,
            "to": 3.395e38,
            "result": {"text": "bfloat16", "color": "text"},
        },
    }
    shown = look(mappings=[STATE, near], unit="short")

    assert [shown.text(v) for v in (0.0, 1.0, 2.0, 3.39e38)] == [
        "running",
        "failed",
        "2",
        "bfloat16",
    ]
    assert shown.colour(1.0) == RED


def test_overrides_apply_to_the_fields_that_they_match() -> None:
    """By name or by regular expression, the later one wins, parts of custom options too."""
    overrides = (
        override("Steps", unit="bytes", custom__width=90),
        override("/^St/", by="byRegexp", unit="s", custom__hideFrom__viz=True),
        override("Other", unit="watt"),
    )

    shown = look("Steps", *overrides, unit="none", custom={"align": "auto"})

    assert shown.options["unit"] == "s"
    assert shown.custom == {"align": "auto", "width": 90, "hideFrom": {"viz": True}}


def test_a_logarithmic_axis_has_ticks_at_powers_of_two() -> None:
    """Zero and less have no place on it."""
    axis = axis_of(look(unit="short", custom={"scaleDistribution": {"type": "log", "log": 2}}))
    axis.reach([0.0, 3.0, 60000.0])

    assert axis.span() == (2.0, 65536.0)
    assert axis.ticks() == [2.0, 16.0, 128.0, 1024.0, 8192.0, 65536.0]
    assert [axis.drawable(v) for v in (0.0, -1.0, 3.0, math.inf)] == [None, None, 3.0, None]


def test_a_folded_row_hides_its_panels_until_it_is_opened() -> None:
    """Panels below move down by as much."""
    place = (0, 5, 12, 8)
    dashboard = board(
        row("First", 0),
        panel("stat", "Above", (0, 1, 24, 3)),
        row("Folded", 4, panel("stat", "Inside", place), panel("stat", "Beside", (12, 5, 12, 6))),
        row("Last", 5),
        panel("stat", "Below", (0, 6, 24, 4)),
    )

    def placed(*, unfolded: bool) -> dict[str, tuple[int, int]]:
        return {b.panel["title"]: (b.x, b.y) for b in boxes(dashboard, unfolded=unfolded)}

    folded = {"First": (0, 0), "Above": (0, 1), "Folded": (0, 4)}
    assert placed(unfolded=False) == folded | {"Last": (0, 5), "Below": (0, 6)}
    opened = {"Inside": (0, 5), "Beside": (12, 5), "Last": (0, 13), "Below": (0, 14)}
    assert placed(unfolded=True) == folded | opened
