"""Everything that is played and asked once for all tests of scripted states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.states.score import Everything, watch

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    """All states, played, scraped, judged by the rules, and told."""
    with watch(tmp_path_factory.mktemp("states")) as found:
        yield found
