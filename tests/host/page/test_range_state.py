"""State of ranges that the page gets."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from ampwatch.host.fleet import Fleet
from ampwatch.host.page.broadcast import merge_patch
from ampwatch.host.page.page import Feed
from ampwatch.host.page.range_state import (
    EXPONENT_COLUMNS,
    MODULE_COLUMNS,
    formats,
)
from ampwatch.settings import Settings
from ampwatch.wire.records import ALL_MODULES, Topic
from tests.workshop.clocks import START, Clock
from tests.workshop.fleets import put
from tests.workshop.records import FACTS, finding, histogram, identity, ranges, sampling, step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ampwatch.numerics.exponents import ExponentHistogram
    from ampwatch.wire.records import RangeRecord, Record

NOW = Clock(START + 20)


class Told:
    """A fleet of one rank, and what a page that follows it is told."""

    def __init__(self, records: Sequence[Record] = ()) -> None:
        self.fleet = Fleet(Settings(), NOW)
        put(self.fleet, "/a.ring", identity(), records)
        self.feed = Feed(self.fleet, NOW)
        self.cursor = self.feed.full()

    def put(self, *records: Record) -> None:
        put(self.fleet, "/a.ring", identity(), records)

    @property
    def state(self) -> dict[str, Any]:
        full = json.loads(json.dumps(self.feed.full(), allow_nan=False))
        return full["runs"]["gpt"]["ranks"]["0"]["ranges"]

    def change(self) -> dict[str, Any]:
        before, self.cursor = self.cursor, self.feed.full()
        return merge_patch(before, self.cursor)

    def column(self, first: int) -> dict[str, Any]:
        return dict(zip(EXPONENT_COLUMNS, self.state["columns"][str(first)], strict=True))

    def module(self, name: str) -> dict[str, Any]:
        return dict(zip(MODULE_COLUMNS, self.state["modules"][name], strict=True))


def gradients(step: int, scale_exponent: int, plain: ExponentHistogram) -> RangeRecord:
    """The gradients of all modules at a loss scale, which without it are ``plain``."""
    scaled = plain.shifted(scale_exponent)
    return ranges(ALL_MODULES, Topic.GRADIENT, scaled, step=step, loss_scale=2.0**scale_exponent)


def test_before_a_sample_the_page_says_why_it_has_nothing() -> None:
    """Under light nothing is ever measured, and an empty chart would not say so."""
    state = Told([step(0)]).state

    assert state["columns"] == state["modules"] == {}
    assert "sampled" not in state
    assert '"deep" more often' in state["sentence"]
    assert '"light" and "off" never' in state["sentence"]


def test_the_sentence_says_how_often_and_what_is_missing() -> None:
    """A panel that hides its gaps looks like a run without trouble."""
    told = Told([sampling(interval=50, samples=(1200, 0, 0, 0, 0, 0))])
    assert (
        told.state["sentence"] == "Sampled every 50 steps, 1\u202f200 samples of gradients so far"
    )

    told.put(sampling(interval=1, samples_dropped=2, modules_left_out=1, tensors_refused=3))
    assert told.state["sentence"] == (
        "Sampled every step, 1 sample of gradients so far, 2 samples dropped,"
        " 1 module left out of the newest, 3 tensors that cannot be measured"
    )

    told.put(sampling(interval=0))
    assert told.state["sentence"].startswith("Not sampled any more")


def test_a_column_holds_the_gradients_without_the_loss_scale_and_the_scale() -> None:
    """The page moves lines or data; what it gets does not move with the scale."""
    plain = histogram(-30, 5, 0, 7, zeros=3, nans=2, positive_infs=1)
    told = Told([gradients(40, 16, plain)])

    assert told.column(40) == {
        "last_step": 40,
        "scale_low": 65536.0,
        "scale_high": 65536.0,
        "amax": 2.0**-28,
        "lowest": -30,
        "counts": [5, 0, 7],
        "zeros": 3,
        "nans": 2,
        "infs": 1,
    }


def test_a_module_has_its_numbers_in_the_units_of_the_page() -> None:
    """Gradients unscaled, headroom in bits of the scaled ones, shares from 0 to 1."""
    gradient = ranges("fc", Topic.GRADIENT, histogram(-6, 8, 2), loss_scale=2.0**10)
    output = ranges("fc", Topic.ACTIVATION, histogram(3, 6, amax=5.0), dtype="float16")
    update = ranges("fc", Topic.UPDATE, histogram(-9, 3, zeros=1))
    told = Told([FACTS, gradient, output, update])

    row = told.module("fc")
    assert row["gradient_amax"] == pytest.approx(2.0**-15, rel=1e-3)
    assert row["gradient_headroom"] == pytest.approx(math.log2(65504 / 2.0**-5), rel=1e-3)
    assert row["activation_amax"] == 5.0
    assert row["activation_headroom"] == pytest.approx(math.log2(65504 / 5), rel=1e-3)
    assert (row["lost"], row["unchanged"], row["nonfinite"]) == (0.0, 0.25, 0)


def test_what_was_not_measured_of_a_module_is_unknown_and_not_zero() -> None:
    """A module without parameters has no gradient and no update."""
    row = Told([ranges("relu", Topic.ACTIVATION, histogram(0, 4), dtype="float16")]).module("relu")

    unknown = {name for name, cell in row.items() if cell is None}
    not_measured = {"lost", "gradient_amax", "gradient_headroom", "unchanged"}
    assert unknown == {*not_measured, "culprit"}


@pytest.mark.parametrize("amax", [5e-324, 1.7e308])
@pytest.mark.parametrize("scale", [5e-324, 2.0**1023])
def test_numbers_at_the_ends_of_float64_are_json(amax: float, scale: float) -> None:
    """A run that has gone wrong is the one that is looked at."""
    extreme = histogram(192, 1, amax=amax, amin=amax)
    told = Told(
        [
            ranges(module, topic, extreme, dtype="float64", loss_scale=scale)
            for module in (ALL_MODULES, "fc")
            for topic in (Topic.GRADIENT, Topic.ACTIVATION)
        ]
    )

    assert "fc" in told.state["modules"]


def test_a_sample_of_a_long_run_changes_one_column_and_one_module() -> None:
    """The rest is not sent again."""
    told = Told([gradients(i, 16, histogram(-30, *range(1, 40))) for i in range(240)])
    told.put(*(ranges(f"layer.{i}") for i in range(300)))
    told.change()

    told.put(gradients(240, 16, histogram(-30, 1)), ranges("layer.7", step=1))
    told.change()
    told.put(gradients(242, 16, histogram(-30, 1)), ranges("layer.7", step=2))
    change = told.change()

    changed = change["runs"]["gpt"]["ranks"]["0"]["ranges"]
    assert list(changed["columns"]) == ["242"]
    assert list(changed["modules"]) == ["layer.7"]
    assert len(json.dumps(change)) < 1500


def test_the_format_follows_autocast() -> None:
    """Rows of modules are judged anew when the dtype becomes known."""
    told = Told([FACTS, ranges("fc", Topic.GRADIENT, histogram(-40, 9))])
    assert told.module("fc")["why"] == "lost"

    told.put(type(FACTS)({"autocast_dtype": "bfloat16"}))

    assert told.state["format"] == "bfloat16"
    assert told.module("fc")["why"] == ""


def test_without_autocast_nothing_is_lost_and_every_format_is_still_offered() -> None:
    """float32 is not judged by float16, which is only what is drawn."""
    tiny = histogram(-40, 9)
    told = Told([gradients(0, 0, tiny), ranges("fc", exponents=tiny)])

    row = told.module("fc")
    assert (row["trouble"], row["why"], row["lost"], row["gradient_headroom"]) == (0, "", 0, None)
    assert (told.state["format"], told.state["format_known"]) == ("float16", False)


def test_a_row_says_how_old_it_is() -> None:
    """By the newest of its measurements; the sentence says how long ago the last sample was."""
    told = Told([ranges("fc", step=4), ranges("fc", Topic.WEIGHT, step=9), sampling(step=9)])
    assert told.module("fc")["step"] == 9

    told.put(step(109))
    assert told.module("fc")["step"] == 9
    assert told.state["sentence"].startswith("Sampled every 100 steps")


def test_a_number_that_is_older_than_its_row_has_its_own_step() -> None:
    """Topics take turns: an output of before an overflow must not pass for one of after it."""
    output = ranges("fc", Topic.ACTIVATION, histogram(3, 6), step=4, dtype="float16")
    told = Told([output, ranges("fc", Topic.GRADIENT, histogram(-6, 8), step=9)])
    of_outputs = {"activation_amax": 4, "activation_headroom": 4}
    assert (told.module("fc")["step"], told.module("fc")["older"]) == (
        9,
        {**of_outputs, "nonfinite": 4},
    )

    told.put(ranges("fc", Topic.GRADIENT, histogram(-6, 8, nans=2), step=12))
    assert (told.module("fc")["nonfinite"], told.module("fc")["older"]) == (2, of_outputs)
    told.put(replace(output, step=12))
    assert told.module("fc")["older"] == {}


@pytest.mark.parametrize(
    ("where", "culprit"),
    [("block.attn", "block.attn"), ("param:fc.weight", "fc"), ("loss", None)],
)
def test_the_module_that_the_verdict_names_has_a_row_above_all_others(
    where: str, culprit: str | None
) -> None:
    """Also one that was never measured, without a number: an op may be called in any module."""
    broken = ranges("fc2", Topic.GRADIENT, histogram(-6, 8, nans=2))
    told = Told([step(0), ranges("fc", Topic.GRADIENT, histogram(-6, 8)), broken])
    told.put(finding("forward_overflow", where))
    rows = {name: told.module(name) for name in told.state["modules"]}

    worst = max(rows, key=lambda name: rows[name]["trouble"])
    assert set(rows) == {"fc", "fc2", culprit or "fc"}
    assert (worst, rows[worst]["culprit"]) == (culprit or "fc2", "critical" if culprit else None)
    if culprit == "block.attn":
        assert {rows[culprit][cell] for cell in MODULE_COLUMNS[2:10]} == {None}


def test_the_limits_of_every_narrow_format_are_reported() -> None:
    """All that the lines of the heatmap and the what-if panel need."""
    told = formats()

    assert list(told) == [
        "bfloat16",
        "float16",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
    ]
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert told["float16"] == {
        "max": 65504.0,
        "overflow_from": 65520.0,
        "min_normal": 2.0**-14,
        "min_subnormal": 2.0**-24,
    }


@pytest.mark.parametrize(
    ("loss_scale", "expected"),
    [
        (math.nan, "none"),
        (0.0, "none, for it is 0 now"),
        (math.inf, "none, for it is infinity now"),
    ],
)
def test_a_scale_that_is_no_power_is_told_from_none(loss_scale: float, expected: str) -> None:
    """The figure says 0 where the scale was halved away: what could be dialled starts elsewhere."""
    state = Told([step(0, loss_scale=loss_scale)]).state

    assert state["no_scale"] == expected
    assert "loss_scale" not in state
    assert Told([step(0, loss_scale=4.0)]).state["loss_scale"] == 4.0
