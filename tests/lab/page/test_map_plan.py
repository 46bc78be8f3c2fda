"""The map of a model by a precision plan, as the page gets it."""

from __future__ import annotations

import gzip
import json
import math
from typing import Any

from ampwatch.host.page.map_state import Maps
from ampwatch.wire.records import MAX_PLANNED, PRODUCTS, Record, Topic
from tests.workshop.fleets import fleet_of
from tests.workshop.records import FACTS, histogram, identity, planned, ranges, sampling


def map_of(*records: Record) -> dict[str, Any]:
    """Return the map of a rank that has written these records, and has measured two modules."""
    seen = [
        ranges(name, Topic.ACTIVATION, histogram(-8, 1000), dtype="float16")
        for name in ("decoder.up", "decoder.norm")
    ]
    fleet = fleet_of(FACTS, *seen, sampling(), *records)
    answer = Maps(fleet).answer(identity().run, "0")
    assert answer is not None
    state: dict[str, Any] = json.loads(gzip.decompress(answer.packed))
    return state


def cells(state: dict[str, Any]) -> dict[str, list[str]]:
    """Return what stands in the cells of each module, in words."""
    words = {code["letter"]: code["words"] for code in state["codes"]}
    pairs = zip(state["modules"], state["rows"], strict=True)
    return {module: [words[letter] for letter in row] for module, row in pairs}


def test_without_a_plan_there_is_no_choice() -> None:
    """The page offers nothing that nobody has asked for."""
    assert "plan" not in map_of()


def test_a_cell_has_the_format_of_a_product() -> None:
    """In the order of the modules of the map; layers that it does not have come last."""
    plan = map_of(planned(), planned("head", 1, formats=("bfloat16", "", "as is")))["plan"]

    none = "no product of a layer"
    assert plan["columns"] == list(PRODUCTS)
    assert cells(plan) == {
        "decoder.norm": [none, none, none],
        "decoder.up": ["nvfp4", "float8_e5m2 x float8_e4m3fn", "float8_e4m3fn"],
        "head": ["bfloat16", none, "as is"],
    }
    assert list(plan["modules"])[-1] == "head"


def test_a_cell_says_its_loss_and_why_no_cheaper_format() -> None:
    """Or why none at all; nothing where there is no product."""
    formats = ("mxfp4", "", "as is")
    head = planned("head", 1, formats=formats, why=("", "", "grad_output not measured"))
    plan = map_of(planned(), head)["plan"]

    assert plan["details"] == {
        "decoder.up": [
            "17.2 dB; not mxfp4: 14.1 dB (input 17.0, weight 17.2)",
            "26.1 dB; not mxfp8_e4m3: blocks were not measured",
            "28.8 dB; not nvfp4: 12.2% of grad_output become zero",
        ],
        "head": [
            "17.2 dB; no cheaper format was considered",
            None,
            "28.8 dB; grad_output not measured",
        ],
    }


def test_the_widest_format_is_the_last_code() -> None:
    """A row that holds others shows the last of theirs; what was left as it is, counts as wider than all."""
    formats = ("float32", "as is", "mxfp4")
    plan = map_of(planned(), planned("head", 1, formats=formats))["plan"]

    assert [code["words"] for code in plan["codes"]] == [
        "no product of a layer",
        "mxfp4",
        "nvfp4",
        "float8_e4m3fn",
        "float8_e5m2 x float8_e4m3fn",
        "float32",
        "as is",
    ]
    keys = [reason["key"] for reason in plan["legend"]]
    assert {code["reason"] for code in plan["codes"]} == set(keys)
    meanings = {reason["word"]: reason["meaning"] for reason in plan["legend"]}
    assert meanings["8 bits"] == "float8_e4m3fn, float8_e5m2 x float8_e4m3fn"


def test_it_says_what_it_rests_on() -> None:
    """When it was asked for, by which limits, and of which iterations."""
    said = map_of(planned(gpu="H100"))["plan"]["sentence"]

    assert said.startswith("Precision plan on H100 that was asked for at step 80, for 1 layer:")
    assert "keeps 15 dB and has at most 10 % of an operand become zero" in said
    assert "rests on 8 measured iterations, of steps 0 to 80" in said


def test_a_new_plan_takes_the_place_of_the_old_one() -> None:
    """All of it, also where its first layer was lost on the way."""
    first = [planned(), planned("head", 1)]

    assert set(map_of(*first, planned("tail"))["plan"]["details"]) == {"tail"}
    assert set(map_of(*first, planned("tail", 1, step=90))["plan"]["details"]) == {"tail"}


def test_a_plan_of_a_hostile_ring_is_bounded() -> None:
    """As many layers as a training plans, and no word that JSON cannot hold."""
    many = [planned(f"h.{n}", n) for n in range(MAX_PLANNED + 9)]
    odd = planned(
        "odd",
        3,
        formats=("?", "??", "as is"),
        sqnr_db=(math.nan, math.inf, -math.inf),
        why=("", "x", ""),
    )

    assert len(map_of(*many)["plan"]["details"]) == MAX_PLANNED
    assert map_of(planned(), odd)["plan"]["details"]["odd"] == [
        "no cheaper format was considered",
        "no loss; not x",
        "-inf dB",
    ]
