"""Fixtures of the GPU sensors' tests."""

from pathlib import Path

import pytest

from tests.host.daemon.parts import Place
from tests.host.gpu.standin import Standin


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standin:
    """A driver of today with a GPU of the Hopper kind."""
    return Standin(tmp_path / "driver", monkeypatch)


@pytest.fixture
def old_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standin:
    """A driver from before GPM, MIG and memory v2."""
    return Standin(tmp_path / "driver", monkeypatch, old=True)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
