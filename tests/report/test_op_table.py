"""The table of ops for a terminal."""

from __future__ import annotations

import pytest

from ampwatch.numerics.units.ops import Fallback, OpKind
from ampwatch.report.op_table import render
from ampwatch.wire.records import CastTotal, OpTotal
from tests.workshop.records import census, op_row

T = 10**12
MIXED = census(
    op_row("addmm", calls=24, flops=9 * T, tensor_flops=9 * T, bytes=2 * 10**9),
    op_row("bmm", "float32", calls=4, flops=3 * T, bytes=10**8, fallback=Fallback.DISABLED_REGION),
    op_row("_to_copy", "float32", OpKind.CAST, out_dtype="float16", calls=42, bytes=10**9),
    op_row("", "float16", module="encoder.0", flops=9 * T, tensor_flops=9 * T, bytes=2 * 10**9),
    op_row("", "float32", OpKind.CAST, "encoder.0", out_dtype="float16", calls=42, bytes=10**9),
    op_row("", "float32", module="", flops=3 * T, bytes=10**8, fallback=Fallback.DISABLED_REGION),
    ops=(
        OpTotal(OpKind.MATMUL, "float16", 24, 9 * T, 9 * T, 0),
        OpTotal(OpKind.MATMUL, "float32", 4, 3 * T, 0, 0),
    ),
    casts=(CastTotal("float32", "float16", 42, 10**9),),
    step=40,
    rows_left_out=3,
)


def test_by_op_it_says_what_ran_in_what_and_why() -> None:
    """Every cell of a small census."""
    assert render(MIXED) == (
        "1 iteration counted so far, the newest, step 40, one by one;"
        " 3 rows with less to say left out.\n"
        "FLOPs: 75 % in float16, 25 % in float32.\n"
        "Casts: 1.5 to each op that has FLOPs.\n"
        "\n"
        "op        ran in              calls  FLOPs  share  for tensor cores   bytes\n"
        "---------------------------------------------------------------------------\n"
        "addmm     float16                24    9 T   75 %             100 %    2 GB\n"
        "bmm       float32                 4    3 T   25 %               0 %  100 MB\n"
        "    4 in float32: inside autocast(enabled=False)\n"
        "_to_copy  float32 -> float16     42      -      -                 -    1 GB\n"
    )


def test_by_module_it_says_how_much_is_in_low_precision_and_what_is_cast() -> None:
    """The root has a name that can be read."""
    table = render(MIXED, "module").splitlines()

    assert " ".join(table[4].split()) == (
        "module calls FLOPs share low precision for tensor cores bytes casts cast bytes"
    )
    assert " ".join(table[6].split()) == "encoder.0 1 9 T 75 % 100 % 100 % 2 GB 42 1 GB"
    assert " ".join(table[7].split()) == "(root) 1 3 T 25 % 0 % 0 % 100 MB - -"
    assert "inside autocast(enabled=False)" in table[8]


def test_by_dtype_there_is_a_line_for_each() -> None:
    """Casts to a dtype are what it costs."""
    table = render(MIXED, "dtype").splitlines()

    assert " ".join(table[6].split()) == "float16 24 9 T 75 % 100 % 2 GB 42 1 GB"
    assert " ".join(table[7].split()) == "float32 4 3 T 25 % 0 % 100 MB - -"


@pytest.mark.parametrize("by", ["op", "module", "dtype"])
@pytest.mark.parametrize("width", [100, 120, 200])
def test_no_line_is_wider_than_the_terminal(by: str, width: int) -> None:
    """Long names lose their middle, for the end says as much as the beginning."""
    name = "transformer." + "encoder.layers." * 20 + "out_proj"
    rows = [
        op_row(name, fallback=Fallback.CUSTOM_FUNCTION),
        op_row("", module=name, fallback=Fallback.CUSTOM_FUNCTION),
    ]

    table = render(census(*rows), by, width)  # type: ignore[arg-type]

    assert max(map(len, table.splitlines())) <= width
    assert by == "dtype" or "..ut_proj" in table or "out_proj " in table


def test_whatever_a_module_is_called_the_table_is_ascii() -> None:
    """The locale of a cluster is often "C"."""
    table = render(census(op_row("", module="层.0"), op_row("café…")), "module")

    assert table.isascii()
    assert "?.0" in table


def test_a_model_without_matmuls_has_a_table_too() -> None:
    """Nothing is divided by the FLOPs that are not there."""
    table = render(census(op_row("add", "float32", OpKind.POINTWISE)))

    assert "No op with FLOPs was counted." in table
    assert " ".join(table.splitlines()[-1].split()) == "add float32 1 - - - 100 B"


def test_a_census_whose_rows_were_all_cut_has_heads_only() -> None:
    """Totals are still told."""
    assert render(census(rows_left_out=9)).splitlines()[-2].startswith("op")


def test_another_grouping_is_refused_in_words() -> None:
    """With what there is."""
    with pytest.raises(ValueError, match="expected by to be one of op, module, dtype, got 'layer'"):
        render(MIXED, "layer")  # type: ignore[arg-type]


def test_products_that_are_emulated_are_said_to_be() -> None:
    """Those of FP8 whose inputs were wider, and not those that were multiplied as they are."""
    wide = op_row("mm", "float8_e4m3fn", calls=9, inputs="float32", out_dtype="float32")
    real = op_row("_scaled_mm", "float8_e4m3fn", calls=4, inputs="float32+float8_e4m3fn")
    lines = render(census(wide, real)).splitlines()
    said = [line for line in lines if "emulated" in line]

    assert said == ["    9 emulated: numbers of FP8, multiplied in float32"]
    assert lines[lines.index(said[0]) - 1].startswith("mm ")
