"""What is read off turns: sums, medians, the dearest window, and what a tool said of an overflow."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

import benchmarks.gpu  # noqa: F401 - the programs of benchmarks/ import one another as neighbours

overhead, told, turns = (import_module(name) for name in ("overhead", "told", "turns"))


def _turns(*steps: list[float], spent_us: float = 0.0) -> list[Any]:
    """Turns whose steps take so long, by the clock twice as long as in CPU time."""
    return [turns.Turn([2 * ms for ms in each], list(each), spent_us) for each in steps]


def test_a_total_has_every_step_and_a_median_has_none_of_the_rare_ones() -> None:
    """One step in ten is looked at and takes twice as long."""
    bare = _turns([10.0] * 10, [10.0] * 10)
    mine = _turns([10.0] * 9 + [20.0], [10.0] * 9 + [20.0], spent_us=8000.0)

    found = overhead.phase(mine, bare)

    assert found["steps"] == 20
    assert found["cpu_ratio"] == pytest.approx(1.1)
    assert found["wall_ratio"] == pytest.approx(1.1)
    assert found["median_ratio"] == pytest.approx(1.0)
    assert found["mean_us"] == pytest.approx(1000.0)
    assert found["own_us"] == pytest.approx(800.0)
    assert (found["worst_ms"], found["worst_bare_ms"]) == (40.0, 20.0)


def test_the_opening_names_its_first_steps_and_its_dearest_window() -> None:
    """Fifty dear steps in the middle, cheaper first ones, on a machine that slows down for all."""
    pace = [1.0] * 100 + [3.0] * 100
    costs = [1.5] * 32 + [1.0] * 68 + [2.0] * 50 + [1.0] * 50
    watched = [p * c for p, c in zip(pace, costs, strict=True)]
    bare, mine = (
        _turns(*(steps[i : i + 10] for i in range(0, 200, 10))) for steps in (pace, watched)
    )
    opening = {"bare": bare, "bare again": bare, "standard": mine}
    after = {name: _turns([1.0] * 3, [1.0] * 3) for name in opening}

    found = overhead.summarise("x", turns.Turns(opening, after))

    standard = found["variants"]["standard"]["opening"]
    assert standard["first_ratio"] == pytest.approx(1.5)
    assert standard["window_ratio"] == pytest.approx(2.0)
    assert found["variants"]["bare again"]["opening"]["window_ratio"] == pytest.approx(1.0)


FRAMES = """
abs min  abs max  metadata
                  blocks.1.up Linear
1.88e-06 1.29e-01 weight
6.10e-05 2.22e+00 input[0]
4.07e-05 1.48e+00 output
                  blocks.2.down Linear
1.43e-05 9.25e-02 weight
1.83e+01      inf input[0]
     nan      nan output
"""
MODULES = ["blocks.2.down", "blocks.1.up", "blocks.2"]


def _answers(tool: str, text: str, *, healthy: str = "", status: int = 0) -> dict[str, Any]:
    said = told.Said(status, text.rpartition("\n")[2], text)
    answers = told.judge(tool, said, healthy, MODULES)
    return {
        q: (a["said"] if a["right"] else bool(a["said"]) and "wrong") for q, a in answers.items()
    }


def test_the_module_of_the_first_frame_with_an_infinity_counts() -> None:
    """Frames before it, all finite, are not what the tool points at."""
    found = _answers("DebugUnderflowOverflow", FRAMES)

    assert found["module"] == "blocks.2.down"
    assert (found["op"], found["line"], found["remedy"]) == (False, False, False)
