"""The laboratory's tests: it is on, and all but one test of each of its parts are the night's."""

from __future__ import annotations

from pathlib import Path

import pytest

AT_EACH_COMMIT = (
    "test_a_training_without_it_does_not_load_it",
    "test_a_product_is_checked_by_hand",
    "test_the_cheapest_format_that_keeps_the_limit_is_chosen",
    "test_a_plan_of_a_live_training_rests_on_its_steps",
    "test_a_product_that_falls_below_its_limit_is_told_in_db",
    "test_two_runs_that_part_end_with_3_and_name_the_place",
    "test_the_same_run_twice_is_the_same",
    "test_a_cell_says_how_many_bits_are_right",
    "test_what_is_written_is_read",
)
"""Tests of which each stands for a part."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the others to the night."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.name not in AT_EACH_COMMIT:
            item.add_marker("nightly")


@pytest.fixture(autouse=True)
def laboratory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn the laboratory on, also in the programs that a test starts."""
    monkeypatch.setenv("AMPWATCH_LAB", "1")
