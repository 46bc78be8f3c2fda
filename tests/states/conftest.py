"""Everything that is played and asked once for all tests of scripted states."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.states.acts import ACTS
from tests.states.score import Everything, play, watch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.states.played import Played


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    """All states, played, scraped, judged by the rules, and told."""
    with watch(tmp_path_factory.mktemp("states"), _stage(tmp_path_factory)) as found:
        yield found


@pytest.fixture(scope="session")
def plays(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Played]:
    """All states, played and nothing more."""
    return play(_stage(tmp_path_factory), list(ACTS))


def _stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Workers of pytest-xdist have a directory each, below one that is that of the session.
    session = tmp_path_factory.getbasetemp()
    return (session.parent if "PYTEST_XDIST_WORKER" in os.environ else session) / "stage"
