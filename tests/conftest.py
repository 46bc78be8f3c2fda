"""Every test has places of its own: no test touches the rings or the daemon of a user."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point every directory and the port of ampwatch at this test."""
    for name in ("runtime", "rings"):
        (tmp_path / name).mkdir(mode=0o700)
    monkeypatch.setenv("AMPWATCH_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("AMPWATCH_RING_DIR", str(tmp_path / "rings"))
    monkeypatch.setenv("AMPWATCH_PORT", "0")
    return tmp_path
