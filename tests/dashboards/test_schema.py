"""Every key of every committed dashboard is one that Grafana's own types know.

Grafana ignores a key that it does not know without a word; a test has to say it.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.dashboards.documents import FILES, load

pytest.importorskip(
    "grafana_foundation_sdk", reason="Grafana's types (grafana-foundation-sdk) want Python 3.11"
)

from tests.dashboards.example import PROPER
from tests.dashboards.roundtrip import lost

MISSPELT = [
    ("panels.1.fieldConfig", "fieldConfg"),
    ("panels.1.fieldConfig.defaults.thresholds.steps", "step"),
    ("schemaVersion", "schemaversion"),
]


def misspell(dashboard: dict[str, Any], path: str, wrong: str) -> None:
    """Give the key at the end of ``path`` another name."""
    *way, key = path.split(".")
    place: Any = dashboard
    for step in way:
        place = place[int(step) if step.isdigit() else step]
    place[wrong] = place.pop(key)


@pytest.mark.parametrize(("path", "wrong"), MISSPELT, ids=[wrong for _, wrong in MISSPELT])
def test_a_misspelt_key_is_found(path: str, wrong: str) -> None:
    """The key is named, with the place where it stands."""
    dashboard = copy.deepcopy(PROPER)
    misspell(dashboard, path, wrong)

    assert [place for place in lost(dashboard) if place.endswith(f".{wrong}")]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_committed_dashboard_loses_nothing(file: Path) -> None:
    """All of what is written there has a meaning to Grafana."""
    assert lost(load(file)) == []
