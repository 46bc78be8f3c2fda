"""Options of ``make test-frameworks``. The rest of the suite runs without them, and skips what is here."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; pytest knows them only where this directory is named on its command line."""
    group = parser.getgroup("frameworks")
    group.addoption("--frameworks-python", help="the Python that has the frameworks")
    group.addoption("--all", action="store_true", help="the rows that CI leaves out as well")
    group.addoption("--write", action="store_true", help="write down what was found")


@pytest.fixture
def python(request: pytest.FixtureRequest) -> str:
    """The Python that has the frameworks."""
    found: str | None = request.config.getoption("--frameworks-python", default=None)
    if found is None:
        pytest.skip("needs an environment of its own: make test-frameworks")
    return found
