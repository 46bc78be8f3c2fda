"""Fixtures that the tests of the promises share."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampwatch.training import outlet
from ampwatch.training.launcher import DaemonStatus
from tests.trainings import RECIPES

# torch says so itself when a scheduler runs ahead; that is the mistake under test.
NO_DAEMON = DaemonStatus(url="", state="unavailable", message="")

ahead = pytest.mark.filterwarnings("ignore:Detected call of:UserWarning")

MOST = ("two-optimizers", "bf16-without-scaler")
"""Recipes in which nearly all sensors have something to do: one with a scaler, one without."""

each_recipe = pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(recipe, marks=[] if recipe in MOST else pytest.mark.rotating)
        for recipe in RECIPES
    ],
)


@pytest.fixture(autouse=True)
def comparable(one_thread: None) -> None:
    """Things that two runs that are compared need."""


@pytest.fixture
def serving(own_places: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rings are written as always, but no daemon is started; returns where the rings are."""
    monkeypatch.setattr(outlet, "ensure_daemon", lambda _settings: NO_DAEMON)
    return own_places / "rings"
