"""Everything that is played and asked once for all tests of scripted states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.states.acts import ACTS
from tests.states.score import Everything, play, watch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.states.played import Played


@pytest.fixture(scope="session")
def everything(
    tmp_path_factory: pytest.TempPathFactory, directory_of_all: Path
) -> Iterator[Everything]:
    """All states, played, scraped, judged by the rules, and told."""
    with watch(tmp_path_factory.mktemp("states"), directory_of_all / "stage") as found:
        yield found


@pytest.fixture(scope="session")
def plays(directory_of_all: Path) -> dict[str, Played]:
    """All states, played and nothing more."""
    return play(directory_of_all / "stage", list(ACTS))
