"""The precision of a rank, as the page is told."""

from __future__ import annotations

import json
from typing import Any

from ampwatch.host.page.page import Feed
from ampwatch.host.page.precision_state import (
    KERNEL_COLUMNS,
    MAX_KERNELS,
    MAX_LINES,
    OP_COLUMNS,
    PrecisionState,
    kernel_names,
)
from ampwatch.numerics.units.ops import Fallback, OpKind, Phase
from ampwatch.wire.records import KernelTotal, Record
from tests.workshop.clocks import START, Clock
from tests.workshop.fleets import PRECISION, fleet_of, made_up_fleet
from tests.workshop.records import census, kernel, op_row, window

NOW = Clock(START + 20)


def told(*records: Record) -> Any:
    state = Feed(fleet_of(*records), NOW).full()
    return json.loads(json.dumps(state["runs"]["gpt"]["ranks"]["0"]["precision"], allow_nan=False))


def lines(state: Any, by: str) -> list[dict[str, Any]]:
    return [dict(zip(OP_COLUMNS, row, strict=True)) for row in state["ops"]["tables"][by]]


def test_before_anything_was_counted_there_are_reasons_and_nothing_else() -> None:
    """No empty table, no empty bar."""
    state = told()

    assert state["ops"].keys() == {"sentence"}
    assert state["kernels"].keys() == {"sentence"}
    assert state["ceiling"] == {}
    assert state["ops"]["sentence"].endswith(".")
    assert state["kernels"]["sentence"].endswith(".")


def test_what_was_counted_is_in_every_table() -> None:
    """Of the made-up census, every number."""
    state = told(*PRECISION)

    assert state["ops"]["mix"] == [["float16", 0.75], ["float32", 0.25]]
    assert state["ops"]["fallbacks"] == [["inside autocast(enabled=False)", 2, 4e12]]
    assert state["ops"]["casts_per_op"] == 1.357
    assert state["ops"]["cast_bytes"] == 902.5
    addmm, bmm, cast = lines(state, "op")
    assert (addmm["name"], addmm["ran_in"], addmm["calls"]) == ("addmm", "float16", 6)
    assert (addmm["flops"], addmm["tensor_flops"]) == (6e12, 5e12)
    assert bmm["why"] == [[1, "inside autocast(enabled=False)"]]
    assert (cast["ran_in"], cast["calls"]) == ("float32 -> float16", 9)
    (head,) = lines(state, "module")
    assert head["mix"] == [["float16", 0.75], ["float32", 0.25]]
    assert [line["name"] for line in lines(state, "dtype")] == ["float16", "float32"]
    assert state["ops"]["left_out"] == {"op": 0, "module": 0, "dtype": 0}


def test_a_module_without_flops_is_mixed_by_its_bytes() -> None:
    """A norm is in some dtype as well."""
    rows = [
        op_row("", "float32", OpKind.OTHER, "norm"),
        op_row("", "float16", OpKind.OTHER, "norm"),
    ]

    (norm,) = lines(told(census(*rows)), "module")

    assert norm["mix"] == [["float32", 0.5], ["float16", 0.5]]


def test_what_was_profiled_is_reported_with_its_kernels() -> None:
    """Of the made-up window, every number."""
    kernels = told(*PRECISION)["kernels"]

    assert kernels["share"] == [0.6, 0.8]
    assert kernels["totals"][0] == ["tensor", "float16", 0.6]
    assert len(kernels["remarks"]) == 3
    first = dict(zip(KERNEL_COLUMNS, kernels["rows"][0], strict=True))
    assert (first["name"], first["unit"], first["seconds"]) == ("gemm", "tensor", 0.6)
    assert kernels["left_out"] == 0


def full_census() -> Record:
    """More rows than a ring can hold: long names, each another one."""
    rows = [
        op_row(
            "",
            "bfloat16",
            kind,
            f"transformer.encoder.layers.{i}.attention.out_proj",
            phase=phase,
            flops=10**12 + i,
            fallback=Fallback.CUSTOM_FUNCTION,
        )
        for i in range(300)
        for kind in (OpKind.MATMUL, OpKind.CAST)
        for phase in (Phase.FORWARD, Phase.BACKWARD)
    ]
    ops = [op_row(f"op{i}", fallback=Fallback.CUSTOM_FUNCTION) for i in range(200)]
    return census(*rows, *ops)


def test_the_state_of_a_large_model_is_bounded() -> None:
    """Below 100 kB a rank, and what is left out is counted."""
    kernels = tuple(kernel(f"{'x' * 195}{i}") for i in range(100))
    state = told(full_census(), window(KernelTotal("tensor", "float16", 1), kernels=kernels))

    assert len(json.dumps(state)) < 100_000
    assert len(state["ops"]["tables"]["module"]) == MAX_LINES
    assert state["ops"]["left_out"]["module"] == 300 - MAX_LINES
    assert state["kernels"]["left_out"] == 100 - MAX_KERNELS


def test_a_newer_census_replaces_the_older_one() -> None:
    """Of the rest, only what has changed is sent."""
    rank = fleet_of(*PRECISION).ranks()[0]
    state = PrecisionState()
    before = state.of(rank)
    rank.apply(census(op_row("mm"), step=9))

    after = state.of(rank)

    assert [row[0] for row in after["ops"]["tables"]["op"]] == ["mm"]
    assert after["kernels"] is before["kernels"]


def test_the_names_of_kernels_are_reported_with_the_rules_that_took_them() -> None:
    """Names that no rule knows are listed, for whoever extends the classifier."""
    runs = kernel_names(made_up_fleet())["runs"]

    assert runs.keys() == {"gpt"}
    (rank,) = runs["gpt"].values()
    assert rank["unlisted"] == ["strange"]
    assert [row[KERNEL_COLUMNS.index("rule")] for row in rank["kernels"]] == ["cutlass", "unlisted"]
