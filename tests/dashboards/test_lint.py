"""Every committed dashboard is clean under the rules of Grafana's dashboard-linter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.dashboards.documents import FILES, load
from tests.dashboards.linter import lint

if TYPE_CHECKING:
    from pathlib import Path


def test_the_dashboards_are_those_that_the_docs_speak_of() -> None:
    """None is forgotten, none is left over."""
    topics = ("gpu", "layers", "overview", "precision", "ranks", "run")

    assert [file.name for file in FILES] == [f"ampwatch-{topic}.json" for topic in topics]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dashboard_has_no_error_and_no_warning(file: Path) -> None:
    """No rule is left out for any panel."""
    assert lint(load(file)) == []
