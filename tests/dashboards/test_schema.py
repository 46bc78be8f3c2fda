"""Every key of every committed dashboard is one that Grafana's own types know.

Grafana ignores a key that it does not know without a word; a test has to say it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dashboards.documents import FILES, load

pytest.importorskip(
    "grafana_foundation_sdk", reason="Grafana's types (grafana-foundation-sdk) want Python 3.11"
)

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.dashboards.example import PROPER

MISSPELT = [
    ("panels.1.fieldConfig", "fieldConfg"),
    ("panels.1.fieldConfig.defaults.thresholds.steps", "step"),
    ("schemaVersion", "schemaversion"),
]


def lost(dashboard: dict[str, Any]) -> list[str]:
    """Return the paths in ``dashboard`` that Grafana's types have no place for."""
    register_default_plugins()
    through = JSONEncoder(sort_keys=False).encode(Dashboard.from_json(dashboard))
    return list(_missing(dashboard, json.loads(through), ""))


def _missing(before: Any, after: Any, path: str) -> Iterator[str]:
    if before is None:  # written out or left out, it means the same
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key in after:
                yield from _missing(value, after[key], f"{path}.{key}")
            elif value is not None:
                yield f"{path}.{key}"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _missing(one, other, f"{path}[{index}]")
    elif before != after:
        yield f"{path}: {before!r} became {after!r}"


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
