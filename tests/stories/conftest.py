"""Fixtures of all stories."""

from __future__ import annotations

import math

import pytest

from ampwatch.training.iteration import governor


@pytest.fixture
def samples_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many pieces a sample is split into depends on how busy this machine is."""
    monkeypatch.setattr(governor, "WORST_SHARE", math.inf)
