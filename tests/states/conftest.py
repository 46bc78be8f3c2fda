"""Everything that is played and asked once for all tests of scripted states."""

from __future__ import annotations

import fcntl
import pickle
from pathlib import Path

import pytest

from tests.states.acts import ACTS
from tests.states.played import Played
from tests.states.score import Everything, play, watch


@pytest.fixture(scope="session")
def everything(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    directory_of_all: Path,
) -> Everything:
    """All states, played, scraped, judged by the rules, and told; in whichever worker asks first.

    Where no test of the night is run, those that a test is about, of which neither a Prometheus nor
    an Alertmanager is asked.
    """
    # By their place as well: another module has a fixture of that name.
    here = [item for item in request.session.items if item.path.parent == Path(__file__).parent]
    asking = [item for item in here if "everything" in item.fixturenames]
    at_night = any(item.get_closest_marker("nightly") for item in asking)
    kept = directory_of_all / "everything"
    with (directory_of_all / "everything.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            names = ACTS if at_night else {item.callspec.params["state"] for item in asking}
            directory, stage = tmp_path_factory.mktemp("states"), directory_of_all / "stage"
            with watch(directory, stage, sorted(names), servers=at_night) as seen:
                kept.write_bytes(pickle.dumps(seen))
    found: Everything = pickle.loads(kept.read_bytes())
    return found


@pytest.fixture(scope="session")
def plays(directory_of_all: Path) -> dict[str, Played]:
    """All states, played and nothing more."""
    return play(directory_of_all / "stage", list(ACTS))
