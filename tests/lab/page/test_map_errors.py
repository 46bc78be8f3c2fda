"""The map of a model by error budgets, as the page gets it."""

from __future__ import annotations

import math

import pytest

from ampwatch.host.fleet.rank import MAX_BUDGETS
from ampwatch.lab.budget import ErrorBudget, ErrorRow, records_of
from ampwatch.wire.records import MAX_BUDGETED
from tests.lab.page.test_map_plan import cells, map_of
from tests.workshop.fleets import fleet_of
from tests.workshop.records import budgeted


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
