"""The map of a model by a precision plan and by error budgets, and losses in blocks, as the page gets them."""

from __future__ import annotations

import gzip
import json
import math
import re
from typing import Any

import pytest
import torch

from ampwatch.host.fleet.ranges import MAX_BLOCKED
from ampwatch.host.fleet.rank import MAX_BUDGETS
from ampwatch.host.page.map_state import Maps
from ampwatch.host.page.rows import State
from ampwatch.host.page.whatif_state import Asked, WhatIfs
from ampwatch.lab.budget import ErrorBudget, ErrorRow, records_of
from ampwatch.numerics.formats import FORMATS
from ampwatch.wire.records import (
    MAX_BUDGETED,
    MAX_PLANNED,
    PRODUCTS,
    Operand,
    RangeRecord,
    Record,
    Topic,
)
from tests.numerics.block_oracle import operand_of, quantised, sqnr_db
from tests.workshop.fleets import fleet_of
from tests.workshop.records import FACTS, budgeted, histogram, identity, planned, ranges, sampling


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


def test_without_a_budget_there_is_no_choice() -> None:
    """The page offers nothing that nobody has asked for."""
    assert "errors" not in map_of()


def test_a_column_is_a_budget() -> None:
    """Each of other formats, the newest last; modules that the map does not have come last."""
    errors = map_of(
        budgeted(),
        budgeted("head", 1, total=0.3, dtype="float32"),
        budgeted(step=120, autocast="float16", total=0.1, error=0.02, contribution=math.nan),
        budgeted(step=130, autocast="", total=math.nan),
    )["errors"]

    none = "not in this budget"
    assert errors["columns"] == ["bfloat16", "float16", "no autocast"]
    assert cells(errors) == {
        "decoder.norm": [none, none, none],
        "decoder.up": ["7 to 10 bits are right", "2 to 4 bits are right", none],
        "head": ["fewer than 2 bits are right", none, none],
    }
    assert errors["details"]["decoder.up"] == [
        "8.1 in bfloat16; its own error adds -1.9e-05 to the error of the loss",
        "3.3 in bfloat16",
        None,
    ]
    assert errors["sentence"].endswith(
        " Of step 80, autocast to bfloat16: the loss is off by -3.7e-05."
        " Of step 120, autocast to float16: the loss is off by 0.02."
        " Of step 130, no autocast: the loss is off by -3.7e-05."
    )


@pytest.mark.each_commit
@pytest.mark.parametrize(
    ("total", "words"),
    [
        (2.0**-16, "16 or more"),
        (2.0**-12, "10 to 16"),
        (2.0**-4.5, "4 to 7"),
        (0.9, "fewer than 2"),
        (math.inf, "fewer than 2"),
    ],
)
def test_a_cell_says_how_many_bits_are_right(total: float, words: str) -> None:
    """A limit belongs to the better grade; what is not finite has none."""
    errors = map_of(budgeted(total=total))["errors"]

    assert cells(errors)["decoder.up"] == [f"{words} bits are right"]


def test_the_worst_is_the_last_code() -> None:
    """A row that holds others shows the last of theirs."""
    codes = [code["words"] for code in map_of(budgeted())["errors"]["codes"]]

    assert codes[0] == "not in this budget"
    assert codes[1].startswith("16 or more")
    assert codes[-1].startswith("fewer than 2")


def test_a_newer_budget_takes_the_place_of_one_of_the_same_formats() -> None:
    """Whole: a module that it does not have is gone; others stay."""
    errors = map_of(
        budgeted(), budgeted("head", 1), budgeted(autocast="float16"), budgeted(step=90, total=0.5)
    )["errors"]

    assert errors["columns"] == ["float16", "bfloat16"]
    assert "head" not in errors["modules"]


def test_columns_are_told_apart() -> None:
    """By the model where there are several."""
    models = map_of(budgeted("gen.a", model="gen"), budgeted("disc.a", model="disc"))["errors"]

    assert models["columns"] == ["gen bfloat16", "disc bfloat16"]
    assert set(models["modules"]) >= {"gen.a", "disc.a"}
    assert "Of step 80, gen in autocast to bfloat16: the loss is off" in models["sentence"]


def test_a_budget_whose_first_module_was_lost_is_not_mixed_with_the_one_before() -> None:
    """With one of another step or of the same, and with none."""
    first, rest = [budgeted(), budgeted("head", 1)], [budgeted("up", 1), budgeted("top", 2)]
    for records in (
        rest,
        [*first, *rest],
        [*first, *(budgeted(r.module, r.place, step=90) for r in rest)],
    ):
        errors = map_of(*records)["errors"]
        assert set(errors["details"]) == {"up", "top"}


def test_only_so_many_budgets_and_modules_are_kept() -> None:
    """Of budgets the newest, whatever a ring has."""
    many = [budgeted(autocast=f"format{i}") for i in range(MAX_BUDGETS + 3)]
    most = [budgeted(f"m{i}", i, autocast="most") for i in range(MAX_BUDGETED + 9)]
    (rank,) = fleet_of(*many, *most).ranks()

    assert [key[1] for key in rank.budgets][-2:] == [f"format{MAX_BUDGETS + 2}", "most"]
    assert len(rank.budgets) == MAX_BUDGETS
    assert len(rank.budgets["", "most"]) == MAX_BUDGETED


def test_of_many_modules_the_least_exact_ones_are_sent() -> None:
    """In the order in which they return; what is not known is not worse than what is."""
    rows = [
        ErrorRow(f"m{i}", "", "forward", "float16", 1, total, None, None, None, None, None)
        for i, total in enumerate([1e-3, None, *[2e-3] * MAX_BUDGETED])
    ]
    sent = records_of(ErrorBudget(step=4, formats=("float16",), modules=tuple(rows)))

    assert [record.module for record in sent] == [f"m{i}" for i in range(2, MAX_BUDGETED + 2)]
    assert [record.place for record in sent] == list(range(MAX_BUDGETED))
    assert records_of(ErrorBudget(why_not="no forward")) == []


RUN = identity().run


def _values() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(128, 32, generator=generator)
    return values * torch.exp2(torch.randn(128, 32, generator=generator))


def _measured(values: torch.Tensor, **changes: object) -> RangeRecord:
    measured = operand_of(Operand.GRAD_OUTPUT, values)
    return ranges(exponents=measured.histogram, blocks=measured.blocks, **changes)


def _losses(*records: RangeRecord, module: str | None = None) -> list[State]:
    state = WhatIfs(fleet_of(FACTS, *records)).of(Asked(RUN, "0", module))
    assert state is not None
    return list(state["blocked"])


def test_the_words_are_of_values_that_are_really_cast() -> None:
    """Of each block-scaled format, in the order of their bits."""
    values = _values()
    found = {one["name"]: one["words"] for one in _losses(_measured(values))}
    assert list(found) == [name for name, fmt in FORMATS.items() if fmt.block is not None]
    for name, words in found.items():
        cast = quantised(values.double().reshape(-1), name)
        numbers = re.fullmatch(r"([\d.]+) dB, ([\d.]+) % to zero", words)
        assert numbers is not None
        assert float(numbers[1]) == pytest.approx(
            sqnr_db(values.double().reshape(-1), cast), abs=1.5
        )
        assert float(numbers[2]) == pytest.approx(100 * float((cast == 0).double().mean()), abs=1.0)


def test_formats_stand_under_what_shares_a_scale() -> None:
    """MX apart from NVFP4."""
    groups = {one["name"]: one["group"] for one in _losses(_measured(_values()))}
    assert groups["mxfp4"] == groups["mxint8"] == "MX: a scale for 32 elements"
    assert groups["nvfp4"] == "NVFP4: a scale for 16 elements"


def test_samples_without_blocks_leave_those_that_were_measured() -> None:
    """Blocks are measured in some of the samples only; each module has its own."""
    small, large = _measured(_values() / 64, module="head", step=3), _measured(_values(), step=3)
    records = (small, large, ranges(step=9), ranges("head", step=9))

    assert _losses(*records) == _losses(large)
    assert _losses(*records, module="head") == _losses(small, large, module="head")


def test_nothing_is_said_of_what_was_not_measured() -> None:
    """No blocks, nothing but zeros."""
    assert _losses(ranges()) == []
    assert _losses(_measured(torch.zeros(4, 32))) == []


def test_the_blocks_that_are_kept_are_bounded() -> None:
    """By as many modules as are measured at most."""
    record = _measured(_values(), module="m")
    many = [_renamed(record, f"m.{n}") for n in range(MAX_BLOCKED + 5)]
    (view,) = fleet_of(FACTS, *many).ranks()

    assert len(view.ranges.blocked) == MAX_BLOCKED
    assert "m.0" not in view.ranges.blocked


def _renamed(record: RangeRecord, module: str) -> RangeRecord:
    return ranges(module, exponents=record.histogram, blocks=record.blocks)
