"""Fixtures of the daemon's tests."""

from pathlib import Path

import pytest

from tests.host.daemon.parts import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
