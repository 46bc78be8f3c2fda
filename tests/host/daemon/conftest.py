"""Fixtures of the daemon's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.daemon.certificates import make_certificates
from tests.host.daemon.parts import Daemon, Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Daemon]]:
    """A real daemon for those who only ask it, and its place."""
    directory = tmp_path_factory.mktemp("running")
    # Who is another user of the machine may enter, and still reads nothing.
    directory.chmod(0o755)
    place = Place(directory)
    with place.daemon("--no-gpu", AMPWATCH_REPORT_DIR=str(directory / "reports")) as daemon:
        yield place, daemon
