"""What is read off turns: sums, medians, the dearest window, what a tool said of an overflow; and the long run, made short."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import benchmarks.gpu  # noqa: F401 - the programs of benchmarks/ import one another as neighbours
from benchmarks import soak

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


MIB = 1024


def test_memory_that_goes_on_growing_is_not_flat_and_memory_that_settles_is() -> None:
    """A leak of 100 KiB a look, and histories that fill in the first tenth."""
    leak = [100 * MIB + 100 * look for look in range(200)]
    settles = [100 * MIB + 1000 * min(look, 20) for look in range(200)]

    assert not soak._flat("flat", leak).holds
    assert soak._flat("flat", settles).holds


def test_steps_that_get_slower_are_not_steady() -> None:
    """By the median, and by the slowest of a hundred alone."""
    steady = [100.0 + number % 7 for number in range(20_000)]
    slower = [value * (1 + number / 20_000) for number, value in enumerate(steady)]
    spikes = [value * (3 if n > 17_000 and n % 50 == 0 else 1) for n, value in enumerate(steady)]

    assert [check.holds for check in soak._steady(steady)] == [True, True]
    assert [check.holds for check in soak._steady(slower)] == [False, False]
    assert [check.holds for check in soak._steady(spikes)] == [True, False]


def test_a_scrape_that_takes_twice_as_long_is_told() -> None:
    """Unless it is so short that it is noise."""
    assert soak._steady_scrapes([30.0] * 50 + [50.0] * 50).holds
    assert not soak._steady_scrapes([30.0] * 50 + [90.0] * 50).holds
    assert soak._steady_scrapes([1.0] * 50 + [9.0] * 50).holds


def test_a_quarter_of_a_day_of_runs_that_come_again_leaves_nothing(tmp_path: Path) -> None:
    """Every statement that does not depend on how fast or how full this process is."""
    _, checks = soak._a_day(0.25, tmp_path / "day", life_hours=0.05)
    found = {check.what: check.holds for check in checks}

    assert found["no record is lost"]
    assert found["a run that came again takes the place of the one before"]
    assert found["descriptors are given back"]
    assert found["ranks go when their time is over"]
    assert found["no file is left"]


def test_a_reader_that_loses_records_is_told(tmp_path: Path) -> None:
    """With a ring of the smallest size, which a tick of the clock overruns."""
    _, checks = soak._a_day(0.05, tmp_path / "day", slots=64, steps_per_tick=40)

    assert not {check.what: check.holds for check in checks}["no record is lost"]
