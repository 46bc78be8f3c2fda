"""The long run, made short: its statements hold of what is healthy, and fail for what is not."""

from __future__ import annotations

from pathlib import Path

from benchmarks import soak

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
