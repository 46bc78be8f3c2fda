"""What the tests of the promises share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from ampwatch import outlet
from ampwatch.launcher import DaemonStatus
from ampwatch.sensors import activations

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# torch says so itself when a scheduler runs ahead; that is the mistake under test.
NO_DAEMON = DaemonStatus(url="", state="unavailable", message="")

ahead = pytest.mark.filterwarnings("ignore:Detected call of:UserWarning")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums in one order, so that two runs can be compared bit for bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of the same process compile, after which modules are not sampled."""
    monkeypatch.setattr(activations, "has_compiled", lambda: False)


@pytest.fixture
def serving(own_places: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rings are written as always, but no daemon is started; returns where the rings are."""
    monkeypatch.setattr(outlet, "ensure_daemon", lambda _settings: NO_DAEMON)
    return own_places / "rings"
