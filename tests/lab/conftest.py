"""The laboratory's tests: it is on, and all but one test of each of its parts are the night's."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the others to the night."""
    for item in items:
        is_mine = Path(__file__).parent in item.path.parents
        if is_mine and item.get_closest_marker("each_commit") is None:
            item.add_marker("nightly")


@pytest.fixture(autouse=True)
def laboratory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn the laboratory on, also in the programs that a test starts."""
    monkeypatch.setenv("AMPWATCH_LAB", "1")
