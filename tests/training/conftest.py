"""What every test of the training half leaves behind: nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.training.bench import INSTALLED


@pytest.fixture(autouse=True)
def taken_off() -> Iterator[None]:
    """After each test nothing of its benches is in place, and none of their sensors has failed."""
    yield
    while INSTALLED:
        INSTALLED.pop().remove()
