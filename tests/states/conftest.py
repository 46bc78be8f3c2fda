"""Everything that is played and asked once for all tests of scripted states."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.states.score import Everything, watch

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    """All states, played, scraped, judged by the rules, and told."""
    directory = tmp_path_factory.mktemp("states")
    # Workers of pytest-xdist have a directory each, below one that is that of the session.
    session = tmp_path_factory.getbasetemp()
    stage = session.parent if "PYTEST_XDIST_WORKER" in os.environ else session
    with watch(directory, stage / "stage") as found:
        yield found
